"""Volumes: products over dimensions of the counts in `domains.py`, summed over workers, for classes of strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from itertools import chain, combinations, product
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

import tdl
from planner.grouping import numbered_values
from planner.layout import Signature, Ways
from planner.layout.region import REMEMBERED
from planner.search.costs.domains import (
    Counts,
    Layouts,
    Reach,
    Strategies,
    counts_of_common_reach_held,
    interned_reach_of_indices,
    leading_step_masks,
    product_of_ways_by_mask,
)
from planner.search.costs.tables import LARGE_ELEMENTS, Table

# What operators need of tensors, where their results land, and classes of strategies that differ in neither.


Need = tuple[Reach, ...]
"""What one operand needs of a tensor: one Reach per dimension."""


@lru_cache(maxsize=REMEMBERED)
def needs_of_operands(signature: Signature, operands: tuple[int, ...]) -> tuple[Need, ...]:
    """Return the distinct needs of a node that reads a tensor through these operands."""
    return tuple(dict.fromkeys(operand_need(signature, operand) for operand in operands))


@lru_cache(maxsize=REMEMBERED)
def operand_need(signature: Signature, operand: int) -> Need:
    """Return what a node needs of an operand: per dimension, everything that its accesses reach."""
    accesses = [access for access in signature.description.accesses if access.operand == operand]
    return tuple(
        _reach_of_indices(signature, extent, tuple(dict.fromkeys(access.index[dim] for access in accesses)))
        for dim, extent in enumerate(signature.shapes[operand])
    )


@lru_cache(maxsize=REMEMBERED)
def output_reach(signature: Signature, output: int) -> Need:
    """Return where a node's iterations land in an output: per dimension, a Reach."""
    indices = signature.description.outputs[output].index
    return tuple(
        _reach_of_indices(signature, extent, (index,))
        for index, extent in zip(indices, signature.outputs[output], strict=True)
    )


def _reach_of_indices(signature: Signature, extent: int, indices: tuple[tdl.Index, ...]) -> Reach:
    variables = dict.fromkeys(chain.from_iterable(index.variables for index in indices))
    return interned_reach_of_indices(extent, indices, tuple((name, signature.extents[name]) for name in variables))


class Classes(Struct, frozen=True):
    """Classes of strategies with equal masks: `of` maps [state] to a class, `masks` is [class, column]."""

    of: NDArray[np.intp]
    masks: Table


def classes_of_equal_columns(columns: Sequence[NDArray[np.int64]], states: int) -> Classes:
    """Return the classes of states with equal values in all columns [state]."""
    rows = zip(*(column.tolist() for column in columns), strict=True) if columns else [()] * states
    of, distinct = numbered_values(rows)
    masks = np.array(distinct, dtype=np.int64).reshape(len(distinct), len(columns))
    return Classes(np.array(of, dtype=np.intp), masks)


def strategy_classes_by_need(needs: tuple[Need, ...], strategies: Strategies, more: Sequence[Table] = ()) -> Classes:
    """Return the classes of strategies with equal masks of each need's variables and equal columns `more`."""
    names = [name for need in needs for dimension in need for name in dimension.variables]
    return classes_of_equal_columns([*map(strategies.steps_choosing, names), *more], len(strategies.states))


Demand = tuple[tuple[Reach, tuple[int, ...]], ...]
"""What a class of strategies reaches of one dimension: per need, the Reach and the mask of each of its variables."""


def demands_of_classes(needs: tuple[Need, ...], masks: Table) -> list[list[Demand]]:
    """Return what the strategies of each class reach: [dimension][class], with an entry per need."""
    demands: list[list[Demand]] = [[] for _ in needs[0]]
    for chosen in masks.tolist():
        at = iter(chosen)
        per_need = [[(dimension, tuple(next(at) for _ in dimension.variables)) for dimension in need] for need in needs]
        for dim, term in enumerate(zip(*per_need, strict=True)):
            demands[dim].append(term)
    return demands


# Volumes.


Volumes = NDArray[np.int32] | Table
"""Large arrays use 32 bits if the sum over workers fits: their speed is that of memory."""

KEPT_TABLES = 1 << 9
"""Number of tables of counts kept for later costs; neighbouring nodes usually share some."""

BLOCK_ELEMENTS = 1 << 18
"""Number of elements per block of arrays over classes, holdings and workers, chosen so that a block stays in cache."""


def volume_not_owned(
    chosen: Sequence[tuple[Need, ...]], strategies: Sequence[Strategies], layouts: Layouts, times: Table | None = None
) -> Volumes:
    """Return the sum over workers of |all the chosen needs n not own|: [strategy of each node..., layout].

    `times` is how many terms of every element are read, broadcast to that shape.
    """
    rank, shape = len(layouts.shape), (*(len(s.states) for s in strategies), len(layouts.states))
    if rank == 0:
        again = np.int64(0) if times is None else (times - 1) * prod(layouts.ways)
        return np.broadcast_to(again, shape)
    axes = [strategy_classes_by_need(needs, domain) for needs, domain in zip(chosen, strategies, strict=True)]
    terms = [demands_of_classes(needs, classes.masks) for needs, classes in zip(chosen, axes, strict=True)]
    whole = np.concatenate([layouts.sharded, np.zeros((rank, 1), dtype=np.int64)], axis=1)
    total = volume_within_holdings(terms, whole, layouts.ways)
    every = np.ix_(*(classes.of for classes in axes))
    if times is None:
        return np.asarray((total[..., -1:] - total[..., :-1])[every])
    return np.asarray(times * total[..., -1:][every] - total[..., :-1][every])


def volume_within_holdings(axes: Sequence[list[list[Demand]]], masks: Table, ways: Ways) -> Volumes:
    """Return the sum over workers of |all the terms' reaches n holding|: [class of each axis..., holding].

    `axes` is [dimension][class] per axis; `masks` is [dimension, holding].
    """
    sizes = [len(axis[0]) for axis in axes]
    tables = [counts_by_class_of_each_axis(tuple(tuple(axis[dim]) for axis in axes), ways) for dim in range(len(masks))]
    shape = (*sizes, masks.shape[1])
    large = prod(shape) > LARGE_ELEMENTS
    fits = large and prod(int(counts.max()) for _, counts in tables) * prod(ways) <= np.iinfo(np.int32).max
    dtype = np.int32 if fits else np.int64
    firsts, expanded = [], []
    for ((first, *others), counts), mask in zip(tables, masks, strict=True):
        part = counts.transpose(-1, *range(counts.ndim - 1)).astype(dtype, copy=False)
        for axis, inverse in enumerate((*others, mask), 2):
            part = part.take(inverse, axis=axis)
        firsts.append(first)
        expanded.append(part)
    volumes = np.empty(shape, dtype=dtype)
    for block in row_blocks(sizes[0], prod(shape[1:]) * prod(ways)):
        volume = np.ones((1,), dtype=dtype)
        for first, part in zip(firsts, expanded, strict=True):
            rows = part.take(first[block], axis=1)
            volume = np.multiply(volume, rows, out=rows) if len(volume) == 1 else volume * rows
        volumes[block] = volume[0] * prod(ways) if len(volume) == 1 else volume.sum(axis=0, dtype=dtype)
    return volumes


@lru_cache(maxsize=KEPT_TABLES)
def counts_by_class_of_each_axis(
    axes: tuple[tuple[Demand, ...], ...], ways: Ways
) -> tuple[list[NDArray[np.intp]], Counts]:
    """Return, for one dimension, each axis's classes as numbers of its distinct terms, and the counts of these terms.

    The counts are [term of each axis..., mask, worker]; the last axis has length 1 if all workers' counts are equal.
    """
    inverses, distinct = [], []
    for axis in axes:
        numbers, values = numbered_values(axis)
        inverses.append(np.array(numbers, dtype=np.intp))
        distinct.append(values)
    tables = [counts_of_common_reach_held(reduce(tuple.__add__, terms), ways) for terms in product(*distinct)]
    counts = np.array(tables).reshape(*map(len, distinct), *tables[0].shape)
    return inverses, counts_with_equal_workers_merged(counts)


def counts_with_equal_workers_merged(counts: Counts) -> Counts:
    """Return counts [..., worker], with a last axis of length 1 if all workers' counts are equal."""
    return counts[..., :1].copy() if bool((counts == counts[..., :1]).all()) else counts  # a view would keep all


def sum_over_workers(volume: Table, ways: Ways) -> Table:
    """Sum over the last axis, which has length 1 if all workers' values are equal."""
    return volume[..., 0] * prod(ways) if volume.shape[-1] == 1 else np.asarray(volume.sum(axis=-1))


def row_blocks(size: int, elements_each: int) -> Iterator[slice]:
    """Yield slices of a first axis of this size, with few enough rows for a block each."""
    rows = max(1, BLOCK_ELEMENTS // max(1, elements_each))
    return (slice(start, min(size, start + rows)) for start in range(0, size, rows))


# Traffic across each level of a machine, that is between workers whose digits first differ at that step.
#
# What crosses level i is held within the group that shares the digits at steps < i but not within the group that
# shares the digits at steps <= i. A group holds together what one worker would hold if it were cut at those steps
# alone. Therefore every level's volume is a difference of two such counts.


class LevelTraffic(Struct, frozen=True, eq=False):
    """Elements that cross each level, transfer by transfer; the sum over levels is the cost's table.

    `parts` are pairs of a sign and a table [level, class of each node..., layout]. For nodes of a backward group, the
    sign is +1 for a fetch that copies from earlier ones and -1 for the same fetch alone. `of` gives, per node, the
    class of every strategy.
    """

    of: tuple[NDArray[np.intp], ...]
    parts: tuple[tuple[int, Table], ...]

    def table_by_level(self) -> Table:
        """Return the elements across each level: [level, class of each node..., layout]."""
        return sum((sign * part for sign, part in self.parts[1:]), self.parts[0][0] * self.parts[0][1])

    def table_over_strategies(self, table: Table) -> Table:
        """Return a table over classes as a table over strategies; its last axes are [class of each node..., layout]."""
        for axis, of in enumerate(reversed(self.of), start=2):
            table = table.take(of if table.shape[-axis] > 1 else np.zeros_like(of), axis=-axis)
        return table


class FetchTraffic:
    """Elements of fetches of one tensor that cross each level: [level, class of each node..., layout].

    A need is (node, number among the node's needs). `of` gives, per node, the class of every strategy. `carried` gives
    the steps at which each node carries the tensor's terms, if the tensor may be partial.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[Need, ...]],
        strategies: Sequence[Strategies],
        layouts: Layouts,
        carried: Sequence[Table] | None,
    ) -> None:
        more = [()] * len(nodes) if carried is None else [(steps,) for steps in carried]
        classes = [strategy_classes_by_need(*arguments) for arguments in zip(nodes, strategies, more, strict=True)]
        self.of = tuple(axis.of for axis in classes)
        self._terms_read: Table | int = 1
        self._together: Table | int = 1
        if carried is not None:
            kept = [axis.masks[:, -1] for axis in classes]
            after = ~leading_step_masks(layouts.ways).reshape(-1, *(1,) * (len(nodes) + 1))
            self._terms_read = product_of_ways_by_mask(layouts.ways)[layouts.partial & ~kept[-1][:, None] & after]
            self._together = shared_fetch_flags(kept, layouts).astype(np.int64)
        self._terms = [demands_of_classes(needs, axis.masks) for needs, axis in zip(nodes, classes, strict=True)]
        self._layouts = layouts
        groups = layouts.sharded[:, None, :] & leading_step_masks(layouts.ways)[:, None]
        states = groups.shape[1] * groups.shape[2]
        of_groups = classes_of_equal_columns([*groups.reshape(len(groups), states)], states)
        self._masks, self._at = of_groups.masks.T, of_groups.of.reshape(groups.shape[1:])
        self._fetches: dict[frozenset[tuple[int, int]], Table] = {}

    def traffic_of_fetch_beyond(self, need: tuple[int, int], had: Sequence[tuple[int, int]]) -> Table:
        """Return the fetch of what is in a need and in none of the needs in `had`."""
        subsets = chain.from_iterable(combinations(had, size) for size in range(len(had) + 1))
        parts = [(-1) ** len(others) * self._traffic_of_common_fetch(frozenset((need, *others))) for others in subsets]
        return np.asarray(reduce(np.add, parts) * self._together)

    def _traffic_of_common_fetch(self, needs: frozenset[tuple[int, int]]) -> Table:
        """Return the fetch of what is in all of these needs; a node without any of them has an axis of length 1."""
        if needs not in self._fetches:
            self._fetches[needs] = self._fetch_of_common_needs(needs)
        return self._fetches[needs]

    def _fetch_of_common_needs(self, needs: frozenset[tuple[int, int]]) -> Table:
        steps, states = len(self._layouts.ways), len(self._layouts.states)
        if not self._layouts.shape:
            volume = np.full((steps + 1, *(1 for _ in self.of), states), prod(self._layouts.ways), dtype=np.int64)
            return self._differences_of_levels(volume)
        axes = []
        for node, terms in enumerate(self._terms):
            kept = [number for at, number in sorted(needs) if at == node]
            axes.append([[tuple(term[n] for n in kept) for term in dim[: None if kept else 1]] for dim in terms])
        volume = volume_within_holdings(axes, self._masks, self._layouts.ways).astype(np.int64)
        return self._differences_of_levels(np.moveaxis(volume[..., self._at], -2, 0))

    def _differences_of_levels(self, volume: Table) -> Table:
        had = volume * self._terms_read
        return np.asarray(had[:-1] - had[1:])


def shared_fetch_flags(carried: Sequence[Table], layouts: Layouts) -> NDArray[np.bool_]:
    """Return True where all nodes carry the same terms and share a fetch.

    The shape is [strategy or class of each node..., layout].
    """
    last = carried[-1][:, None]
    together = np.ones((1,) * (len(carried) + 1), dtype=bool)
    for number, steps in enumerate(carried[:-1], start=1):
        differing = (steps[:, *(None,) * (len(carried) - number), None] ^ last) & layouts.partial
        together = together & (differing == 0)
    return together
