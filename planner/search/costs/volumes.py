"""Volumes: products over dimensions of the counts in `counts.py`, summed over workers, for classes of strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from itertools import chain, product
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

import tdl
from planner.layout import Signature, Ways
from planner.layout.region import REMEMBERED
from planner.search.costs.counts import Counts, Reach, counts_of_common_reach_held, interned_reach_of_indices
from planner.search.costs.domains import Layouts, Strategies
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
    numbers: dict[tuple[int, ...], int] = {}
    rows = zip(*(column.tolist() for column in columns), strict=True) if columns else [()] * states
    of = [numbers.setdefault(row, len(numbers)) for row in rows]
    masks = np.array(list(numbers), dtype=np.int64).reshape(len(numbers), len(columns))
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
    chosen: Sequence[tuple[Need, ...]],
    strategies: Sequence[Strategies],
    layouts: Layouts,
    times: Table | None = None,
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
        numbers: dict[Demand, int] = {}
        inverses.append(np.array([numbers.setdefault(term, len(numbers)) for term in axis], dtype=np.intp))
        distinct.append(list(numbers))
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
