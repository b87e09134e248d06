"""Exact costs in elements moved, as tables over candidate strategies and layouts (design: layouts, "Who sends what").

Reading: the sources that share a worker's digits at the replicated steps tile the tensor, so a worker fetches what it
needs and does not own: |need| - |need n own|. Writing: an owner pulls its tile from every partial result, or partial
results are first reduced to shares and the shares fetched. All of these volumes are products over dimensions of
the counts in `counts.py`; where no count depends on the worker they are the design's closed forms.

Partial tensors: a reader that does not carry the terms on fetches all of them, so that |need| counts once per term; a
result that stays partial is not reduced there. What goes together, no table says: `infeasible` does.

Across level i (between workers whose digits first differ at step i) goes what is had within the group that shares the
digits at steps < i but not within the one that shares them at steps <= i. What a group has together is what a worker
would have if it were cut at those steps alone, so that every level's volume is a difference of two such counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import chain, combinations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

import tdl
from planner.layout import EVERYWHERE, Signature
from planner.search.counts import Counts, Reach, common, first_alike, held, reach
from planner.search.domains import Layouts, Strategies, first_eligible_masks

Table = NDArray[np.int64]
Need = tuple[Reach, ...]
"""What one operand needs of a tensor: one Reach per dimension."""

BLOCK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Read:
    """One fetch of a tensor: per node, its operands' distinct needs of it.

    For one node, the cost of its fetch. For several nodes of a backward group, what fetching the union saves or adds
    over the fetches of smaller groups (the term of inclusion and exclusion in which all of them occur). `operands` are,
    per node, those through which it reads the tensor; needed where it may be partial.
    """

    shape: tuple[int, ...]
    nodes: tuple[tuple[Need, ...], ...]
    operands: tuple[tuple[int, ...], ...] = ()

    def table(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table:
        """Return elements moved, [strategy of each node..., layout]."""
        carried = self._carried(strategies, layouts)
        terms = None if carried is None else product_of_ways(layouts.ways)[layouts.partial & ~carried[-1][..., None]]
        total: Table = np.zeros((*(len(s.states) for s in strategies), len(layouts.states)), dtype=np.int64)
        for chosen in product(*(list(_subsets(needs)) for needs in self.nodes)):
            odd = sum(len(needs) - 1 for needs in chosen) + len(self.nodes) - 1
            total += (-1) ** odd * _not_owned(chosen, strategies, layouts, terms)
        return total if carried is None else np.where(_alike(carried, layouts), total, 0)

    def infeasible(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table | None:
        """Return 1 where a node carries terms of a tensor that is not partial then, or of others but not of it.

        [strategy of each node..., layout]; None where nothing is infeasible.
        """
        if len(self.operands) != 1:
            return None
        carries, without = strategies[0].carries(self.operands[0])
        wrong = (carries[:, None] & ~layouts.partial) | (without[:, None] & layouts.partial)
        return _flags(wrong, (len(carries), len(layouts.states)))

    def _carried(self, strategies: Sequence[Strategies], layouts: Layouts) -> list[Table] | None:
        """Return, per node, [strategy]: the steps at which it carries the tensor's terms; None if never partial."""
        if not layouts.partial.any():
            return None
        if len(self.operands) != len(self.nodes):
            raise ValueError("expected the operands through which each node reads a tensor that may be partial")
        return [domain.carries(operands)[0] for domain, operands in zip(strategies, self.operands, strict=True)]

    def crossings(self, strategies: Sequence[Strategies], layouts: Layouts) -> Crossings:
        """Return what crosses each level, of every fetch by itself.

        Only the last node's fetches count: what the term says of the earlier ones cancels out.
        """
        carried = self._carried(strategies, layouts)
        across, last = _Across(self.nodes, strategies, layouts, carried), len(self.nodes) - 1
        parts = []
        for size in range(last + 1):
            for nodes in combinations(range(last), size):
                had = [(node, need) for node in nodes for need in range(len(self.nodes[node]))]
                for need in range(len(self.nodes[last])):
                    parts.append(((-1) ** (last - size), across.beyond((last, need), had)))
                    had.append((last, need))
        return Crossings(across.of, tuple(parts))


@dataclass(frozen=True, slots=True)
class Write:
    """One output on its way from where it is computed to where it is stored."""

    signature: Signature
    output: int

    def table(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table:
        """Return elements moved, [strategy, layout]."""
        return _stored(self, strategies[0], layouts)

    def infeasible(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table | None:
        """Return 1 where the tensor is partial at a step that does not sum, [strategy, layout]; None if nowhere."""
        if not layouts.partial.any():
            return None
        summing = strategies[0].carrying
        for name, how in self.signature.description.strategies.items():
            if how.reducer == "Sum":
                summing = summing | strategies[0].mask(name)
        return _flags(layouts.partial & ~summing[:, None], (len(summing), len(layouts.states)))

    def crossings(self, strategies: Sequence[Strategies], layouts: Layouts) -> Crossings:
        """Return what crosses each level, of every hop by itself."""
        return _stored_across(self, strategies[0], layouts)


Cost = Read | Write


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """Elements across each level, transfer by transfer; all of them together are the cost's table.

    `parts` are tables [level, class of each node..., layout], each with the sign with which it counts: for nodes of a
    backward group, +1 for a fetch that copies from earlier ones and -1 for the same fetch alone. `of` gives, per node,
    the class of every strategy.
    """

    of: tuple[NDArray[np.intp], ...]
    parts: tuple[tuple[int, Table], ...]

    def levels(self) -> Table:
        """Return elements across each level, [level, class of each node..., layout]."""
        return sum((sign * part for sign, part in self.parts[1:]), self.parts[0][0] * self.parts[0][1])

    def spread(self, table: Table) -> Table:
        """Return a table over classes as one over strategies; its last axes are [class of each node..., layout]."""
        for axis, of in enumerate(reversed(self.of), start=2):
            table = table.take(of if table.shape[-axis] > 1 else np.zeros_like(of), axis=-axis)
        return table


@cache
def operand_need(signature: Signature, operand: int) -> Need:
    """Return what a node needs of an operand: per dimension, everything its accesses reach."""
    accesses = [access for access in signature.description.accesses if access.operand == operand]
    return tuple(
        _reach(signature, extent, tuple(dict.fromkeys(access.index[dim] for access in accesses)))
        for dim, extent in enumerate(signature.shapes[operand])
    )


@cache
def output_reach(signature: Signature, output: int) -> Need:
    """Return where in an output a node's iterations land, per dimension."""
    indices = signature.description.outputs[output].index
    return tuple(
        _reach(signature, extent, (index,)) for index, extent in zip(indices, signature.outputs[output], strict=True)
    )


def _reach(signature: Signature, extent: int, indices: tuple[tdl.Index, ...]) -> Reach:
    names = (() if isinstance(index, tdl.Whole) else index.variables for index in indices)
    variables = dict.fromkeys(chain.from_iterable(names))
    return reach(extent, indices, tuple((name, signature.extents[name]) for name in variables))


def _subsets(needs: tuple[Need, ...]) -> Iterator[tuple[Need, ...]]:
    return chain.from_iterable(combinations(needs, size) for size in range(1, len(needs) + 1))


@dataclass(frozen=True, slots=True)
class _Classes:
    """Strategies that do not differ in any of some masks: `of` is [state] -> class, `masks` is [class, column]."""

    of: NDArray[np.intp]
    masks: Table


def _classes(columns: Sequence[NDArray[np.int64]], states: int) -> _Classes:
    numbers: dict[tuple[int, ...], int] = {}
    rows = zip(*(column.tolist() for column in columns), strict=True) if columns else [()] * states
    of = [numbers.setdefault(row, len(numbers)) for row in rows]
    masks = np.array(list(numbers), dtype=np.int64).reshape(len(numbers), len(columns))
    return _Classes(np.array(of, dtype=np.intp), masks)


def _need_classes(needs: tuple[Need, ...], strategies: Strategies, more: Sequence[Table] = ()) -> _Classes:
    names = [name for need in needs for dimension in need for name in dimension.variables]
    return _classes([*map(strategies.mask, names), *more], len(strategies.states))


Term = tuple[tuple[Reach, tuple[int, ...]], ...]


def _terms(needs: tuple[Need, ...], masks: Table) -> list[list[Term]]:
    """Return [dimension][class]: what strategies of the class reach of the dimension, one entry per need."""
    found: list[list[Term]] = [[] for _ in needs[0]]
    for chosen in masks.tolist():
        at = iter(chosen)
        per_need = [[(dimension, tuple(next(at) for _ in dimension.variables)) for dimension in need] for need in needs]
        for dim, term in enumerate(zip(*per_need, strict=True)):
            found[dim].append(term)
    return found


def _flags(wrong: Table, shape: tuple[int, ...]) -> Table | None:
    return np.broadcast_to(wrong != 0, shape).astype(np.int64) if wrong.any() else None


def _alike(carried: Sequence[Table], layouts: Layouts) -> NDArray[np.bool_]:
    """Return where all nodes carry the same terms and so share a fetch, [strategy or class of each node..., layout]."""
    last = carried[-1][:, None]
    together = np.ones((1,) * (len(carried) + 1), dtype=bool)
    for number, steps in enumerate(carried[:-1], start=1):
        differing = (steps[:, *(None,) * (len(carried) - number), None] ^ last) & layouts.partial
        together = together & (differing == 0)
    return together


def _not_owned(
    chosen: Sequence[tuple[Need, ...]],
    strategies: Sequence[Strategies],
    layouts: Layouts,
    times: Table | None = None,
) -> Table:
    """Return sum over workers of |all the chosen needs n not own|, [strategy of each node..., layout].

    `times` is how many terms of every element are read, broadcast to that shape.
    """
    rank, shape = len(layouts.shape), (*(len(s.states) for s in strategies), len(layouts.states))
    if rank == 0:
        again = np.int64(0) if times is None else (times - 1) * prod(layouts.ways)
        return np.broadcast_to(again, shape)
    axes = [_need_classes(needs, domain) for needs, domain in zip(chosen, strategies, strict=True)]
    terms = [_terms(needs, classes.masks) for needs, classes in zip(chosen, axes, strict=True)]
    whole = np.concatenate([layouts.sharded, np.zeros((rank, 1), dtype=np.int64)], axis=1)
    total = _within(terms, whole, layouts.ways)
    every = np.ix_(*(classes.of for classes in axes))
    if times is None:
        return np.asarray((total[..., -1:] - total[..., :-1])[every])
    return np.asarray(times * total[..., -1:][every] - total[..., :-1][every])


def _within(axes: Sequence[list[list[Term]]], masks: Table, ways: tuple[int, ...]) -> Table:
    """Return sum over workers of |all the terms' reaches n holding|, [class of each axis..., holding].

    `axes` are [dimension][class]; `masks` is [dimension, holding].
    """
    tables = [_joint_counts([axis[dim] for axis in axes], ways) for dim in range(len(masks))]
    sizes = [len(axis[0]) for axis in axes]
    found = np.empty((*sizes, masks.shape[1]), dtype=np.int64)
    for block in _blocks(sizes[0], prod(sizes[1:]) * masks.shape[1] * prod(ways)):
        volume = np.ones((1,), dtype=np.int64)
        for (inverses, counts), mask in zip(tables, masks, strict=True):
            at = np.ix_(inverses[0][block], *inverses[1:], mask)
            volume = volume * counts[at]
        found[block] = _over_workers(volume, ways)
    return found


class _Across:
    """What crosses each level of fetches of one tensor, [level, class of each node..., layout].

    A need is (node, number among the node's needs). `of` gives, per node, the class of every strategy; `carried` are
    the steps at which it carries the tensor's terms, if it may be partial.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[Need, ...]],
        strategies: Sequence[Strategies],
        layouts: Layouts,
        carried: Sequence[Table] | None,
    ) -> None:
        more = [()] * len(nodes) if carried is None else [(steps,) for steps in carried]
        classes = [_need_classes(*one) for one in zip(nodes, strategies, more, strict=True)]
        self.of = tuple(axis.of for axis in classes)
        self._terms_read: Table | int = 1
        self._together: Table | int = 1
        if carried is not None:
            kept = [axis.masks[:, -1] for axis in classes]
            after = ~leading(layouts.ways).reshape(-1, *(1,) * (len(nodes) + 1))
            self._terms_read = product_of_ways(layouts.ways)[layouts.partial & ~kept[-1][:, None] & after]
            self._together = _alike(kept, layouts).astype(np.int64)
        self._terms = [_terms(needs, axis.masks) for needs, axis in zip(nodes, classes, strict=True)]
        self._layouts = layouts
        groups = layouts.sharded[:, None, :] & leading(layouts.ways)[:, None]
        columns = groups.reshape(len(layouts.shape), groups.shape[1] * groups.shape[2])
        self._masks, at = np.unique(columns, axis=1, return_inverse=True)
        self._at = at.reshape(groups.shape[1:])
        self._found: dict[frozenset[tuple[int, int]], Table] = {}

    def beyond(self, need: tuple[int, int], had: Sequence[tuple[int, int]]) -> Table:
        """Return the fetch of what is in a need and in none of those had before."""
        subsets = chain.from_iterable(combinations(had, size) for size in range(len(had) + 1))
        parts = [(-1) ** len(others) * self._common(frozenset((need, *others))) for others in subsets]
        return np.asarray(reduce(np.add, parts) * self._together)

    def _common(self, needs: frozenset[tuple[int, int]]) -> Table:
        """Return the fetch of what is in all of these needs; an axis of a node that has none of them is idle."""
        if needs not in self._found:
            self._found[needs] = self._count(needs)
        return self._found[needs]

    def _count(self, needs: frozenset[tuple[int, int]]) -> Table:
        steps, states = len(self._layouts.ways), len(self._layouts.states)
        if not self._layouts.shape:
            one = np.full((steps + 1, *(1 for _ in self.of), states), prod(self._layouts.ways), dtype=np.int64)
            return self._differences(one)
        axes = []
        for node, terms in enumerate(self._terms):
            kept = [number for at, number in sorted(needs) if at == node]
            axes.append([[tuple(term[n] for n in kept) for term in dim[: None if kept else 1]] for dim in terms])
        return self._differences(np.moveaxis(_within(axes, self._masks, self._layouts.ways)[..., self._at], -2, 0))

    def _differences(self, volume: Table) -> Table:
        had = volume * self._terms_read
        return np.asarray(had[:-1] - had[1:])


def _joint_counts(axes: Sequence[list[Term]], ways: tuple[int, ...]) -> tuple[list[NDArray[np.intp]], Counts]:
    """Return, for one dimension, each axis's classes as numbers of its distinct terms, and the counts of these.

    The counts are [term of each axis..., mask, worker]; the last axis has one entry where all workers' are equal.
    """
    inverses, distinct = [], []
    for axis in axes:
        numbers: dict[Term, int] = {}
        inverses.append(np.array([numbers.setdefault(term, len(numbers)) for term in axis], dtype=np.intp))
        distinct.append(list(numbers))
    tables = [common(reduce(tuple.__add__, terms), ways) for terms in product(*distinct)]
    counts = np.stack(tables).reshape(*map(len, distinct), *tables[0].shape)
    return inverses, _without_workers(counts)


def _without_workers(counts: Counts) -> Counts:
    return counts[..., :1] if bool((counts == counts[..., :1]).all()) else counts


def _blocks(size: int, elements_each: int) -> Iterator[slice]:
    rows = max(1, BLOCK_ELEMENTS // max(1, elements_each))
    return (slice(start, min(size, start + rows)) for start in range(0, size, rows))


def _stored(write: Write, strategies: Strategies, layouts: Layouts) -> Table:
    """Return elements moved to store an output; one hop where nothing is replicated or reduced, else two."""
    landing, classes = _landing_classes(write, strategies)
    moved = np.empty((len(classes.masks), len(layouts.states)), dtype=np.int64)
    for block in _blocks(len(classes.masks), len(layouts.states) * prod(layouts.ways) * 2):
        masks = classes.masks[block]
        copies = product_of_ways(layouts.ways)[masks[:, -2, None] & ~layouts.partial]
        own, share, kept = _volumes(landing, masks, layouts)
        moved[block] = (copies - 1) * np.where(layouts.replicated == 0, own, share) + own - kept
    return np.asarray(moved[classes.of])


def _stored_across(write: Write, strategies: Strategies, layouts: Layouts) -> Crossings:
    """Return what crosses each level while partial results are reduced to shares, and in the other hop.

    The sources of a tile that share a worker's digits at the steps before i number as many as the reducing steps
    from i on have ways. Where shares are reduced first, their number no longer matters to what is fetched.
    """
    (landing, classes), ways, steps = _landing_classes(write, strategies), layouts.ways, len(layouts.ways)
    shape = (len(classes.masks), len(layouts.states))
    kept, share = np.empty((steps + 1, *shape), dtype=np.int64), np.empty(shape, dtype=np.int64)
    for block in _blocks(shape[0], shape[1] * prod(ways) * 2):
        for i, part in enumerate(leading(ways).tolist()):
            _, share[block], kept[i, block] = _volumes(landing, classes.masks[block] & part, layouts)
    copies = product_of_ways(ways)[classes.masks[:, -2, None] & ~leading(ways)[:, None, None] & ~layouts.partial]
    one_hop = layouts.replicated == 0
    reduced = np.where(one_hop, 0, (copies[:-1] - copies[1:]) * share)
    had = np.where(one_hop, copies, 1) * kept
    return Crossings((classes.of,), ((1, reduced), (1, had[:-1] - had[1:])))


def _landing_classes(write: Write, strategies: Strategies) -> tuple[Need, _Classes]:
    """Return where the output lands, and strategies' masks: per variable there, of reducing steps, of `*` steps."""
    landing, reducing = output_reach(write.signature, write.output), strategies.carrying
    for name in write.signature.description.reduction_variables:
        reducing = reducing | strategies.mask(name)
    columns = [strategies.mask(name) for dimension in landing for name in dimension.variables]
    return landing, _classes([*columns, reducing, strategies.mask(EVERYWHERE)], len(strategies.states))


def _volumes(landing: Need, masks: Table, layouts: Layouts) -> tuple[Table, Table, Table]:
    """Return what all workers together own [1, layout], have as shares, and own of their shares [class, layout]."""
    ways = layouts.ways
    own, share, kept = _shares(landing, masks, layouts)
    alone = masks[:, -2, None] & layouts.replicated & first_eligible_masks(layouts.shape, ways)[1]
    if alone.any():
        alive = first_alike(ways)[alone]
        share, kept = share * alive, kept * alive
    own_total, share_total, kept_total = (_over_workers(volume, ways) for volume in (own, share, kept))
    return own_total, share_total, kept_total


def _shares(landing: Need, masks: Table, layouts: Layouts) -> tuple[Table, Table, Table]:
    """Return |own| as [1, layout, worker], and |share| and |own n share| as [class, layout, worker].

    At a reducing step a share is cut along the stored dimension or, where stored replicated, along the first eligible
    one; at a `*` step along the stored dimension.
    """
    ways, first = layouts.ways, first_eligible_masks(layouts.shape, layouts.ways)[0]
    reducing, same = masks[:, -2, None], masks[:, -1, None]
    own: Table = np.ones((1, 1, 1), dtype=np.int64)
    share, kept = own, own
    for dim, axis in enumerate(_terms((landing,), masks[:, :-2])):
        (numbers,), counts = _joint_counts([axis], ways)
        sharded = layouts.sharded[dim]
        cut = ((reducing | same) & sharded) | (reducing & layouts.replicated & first[dim])
        own = own * _without_workers(held(layouts.shape[dim], ways)[sharded])
        share = share * counts[numbers[:, None], cut]
        kept = kept * counts[numbers[:, None], cut | sharded]
    return own, share, kept


def _over_workers(volume: Table, ways: tuple[int, ...]) -> Table:
    """Sum over the last axis, which has one entry where all workers' are equal."""
    return np.asarray(volume.sum(axis=-1) * (1 if volume.shape[-1] > 1 else prod(ways)))


@cache
def product_of_ways(ways: tuple[int, ...]) -> Table:
    """Return [mask]: the product of the ways of the mask's steps."""
    bits = np.arange(1 << len(ways))[:, None] >> np.arange(len(ways)) & 1
    return np.asarray(np.where(bits == 1, np.array(ways, dtype=np.int64), 1).prod(axis=1, dtype=np.int64))


@cache
def leading(ways: tuple[int, ...]) -> Table:
    """Return the masks of the first 0, 1, ..., all steps."""
    return (np.int64(1) << np.arange(len(ways) + 1, dtype=np.int64)) - 1
