"""Exact costs in elements moved, as tables over candidate strategies and layouts (design: layouts, "Who sends what").

Reading: the sources that share a worker's digits at the replicated steps tile the tensor, so a worker fetches what it
needs and does not own: |need| - |need n own|. Writing: an owner pulls its tile from every partial result, or partial
results are first reduced to shares and the shares fetched. All of these volumes are products over dimensions of
the counts in `counts.py`; where no count depends on the worker they are the design's closed forms.
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
from planner.search.counts import Counts, Reach, agreement, common, held, reach
from planner.search.domains import Layouts, Strategies, first_eligible_masks

Table = NDArray[np.int64]
Need = tuple[Reach, ...]
"""What one operand needs of a tensor: one Reach per dimension."""

BLOCK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Read:
    """One fetch of a tensor: per node, its operands' distinct needs of it.

    For one node, the cost of its fetch. For several nodes of a backward group, what fetching the union saves or adds
    over the fetches of smaller groups (the term of inclusion and exclusion in which all of them occur).
    """

    shape: tuple[int, ...]
    nodes: tuple[tuple[Need, ...], ...]

    def table(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table:
        """Return elements moved, [strategy of each node..., layout]."""
        total: Table = np.zeros((*(len(s.states) for s in strategies), len(layouts.states)), dtype=np.int64)
        for chosen in product(*(list(_subsets(needs)) for needs in self.nodes)):
            odd = sum(len(needs) - 1 for needs in chosen) + len(self.nodes) - 1
            total += (-1) ** odd * _not_owned(chosen, strategies, layouts)
        return total


@dataclass(frozen=True, slots=True)
class Write:
    """One output on its way from where it is computed to where it is stored."""

    signature: Signature
    output: int

    def table(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table:
        """Return elements moved, [strategy, layout]."""
        return _stored(self, strategies[0], layouts)


Cost = Read | Write


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
        _reach(signature, extent, (index,))
        for index, extent in zip(indices, signature.outputs[output], strict=True)
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
    if not columns:
        return _Classes(np.zeros(states, dtype=np.intp), np.zeros((1, 0), dtype=np.int64))
    masks, of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return _Classes(of.reshape(-1), masks)


def _need_classes(needs: tuple[Need, ...], strategies: Strategies) -> _Classes:
    names = [name for need in needs for dimension in need for name in dimension.variables]
    return _classes([strategies.mask(name) for name in names], len(strategies.states))


Term = tuple[tuple[Reach, tuple[int, ...]], ...]


def _terms(needs: tuple[Need, ...], classes: _Classes) -> list[list[Term]]:
    """Return [dimension][class]: what strategies of the class reach of the dimension, one entry per need."""
    found: list[list[Term]] = [[] for _ in needs[0]]
    for masks in classes.masks.tolist():
        at = iter(masks)
        per_need = [[(dimension, tuple(next(at) for _ in dimension.variables)) for dimension in need] for need in needs]
        for dim, term in enumerate(zip(*per_need, strict=True)):
            found[dim].append(term)
    return found


def _not_owned(chosen: Sequence[tuple[Need, ...]], strategies: Sequence[Strategies], layouts: Layouts) -> Table:
    """Return sum over workers of |all the chosen needs n not own|, [strategy of each node..., layout]."""
    ways = layouts.ways
    axes = [_need_classes(needs, domain) for needs, domain in zip(chosen, strategies, strict=True)]
    terms = [_terms(needs, classes) for needs, classes in zip(chosen, axes, strict=True)]
    rank = len(layouts.shape)
    if rank == 0:
        return np.zeros((*(len(s.states) for s in strategies), len(layouts.states)), dtype=np.int64)
    tables = [_joint_counts([axis[dim] for axis in terms], ways) for dim in range(rank)]
    whole = np.concatenate([layouts.sharded, np.zeros((rank, 1), dtype=np.int64)], axis=1)
    sizes = [len(classes.masks) for classes in axes]
    moved = np.empty((*sizes, len(layouts.states)), dtype=np.int64)
    for block in _blocks(sizes[0], prod(sizes[1:]) * whole.shape[1] * prod(ways)):
        volume = np.ones((1,), dtype=np.int64)
        for (inverses, counts), masks in zip(tables, whole, strict=True):
            at = np.ix_(inverses[0][block], *inverses[1:], masks)
            volume = volume * counts[at]
        total = _over_workers(volume, ways)
        moved[block] = total[..., -1:] - total[..., :-1]
    return np.asarray(moved[np.ix_(*(classes.of for classes in axes), np.arange(len(layouts.states)))])


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
    ways, landing = layouts.ways, output_reach(write.signature, write.output)
    reducing = np.zeros(len(strategies.states), dtype=np.int64)
    for name in write.signature.description.reduction_variables:
        reducing = reducing | strategies.mask(name)
    same = strategies.mask(EVERYWHERE)
    columns = [strategies.mask(name) for dimension in landing for name in dimension.variables]
    classes = _classes([*columns, reducing, same], len(strategies.states))
    moved = np.empty((len(classes.masks), len(layouts.states)), dtype=np.int64)
    for block in _blocks(len(classes.masks), len(layouts.states) * prod(ways) * 2):
        part = _Classes(classes.of, classes.masks[block])
        moved[block] = _moved_to_store(landing, part, layouts)
    return np.asarray(moved[classes.of])


def _moved_to_store(landing: Need, classes: _Classes, layouts: Layouts) -> Table:
    ways = layouts.ways
    reducing = classes.masks[:, -2, None]
    copies = product_of_ways(ways)[reducing]
    own, share, kept = _shares(landing, classes, layouts)
    alone = reducing & layouts.replicated & first_eligible_masks(layouts.shape, ways)[1]
    if alone.any():
        alive = agreement(ways)[:, 0][alone]
        share, kept = share * alive, kept * alive
    own_total, share_total, kept_total = (_over_workers(volume, ways) for volume in (own, share, kept))
    reduced = np.where(layouts.replicated == 0, own_total, share_total)
    return np.asarray((copies - 1) * reduced + own_total - kept_total)


def _shares(landing: Need, classes: _Classes, layouts: Layouts) -> tuple[Table, Table, Table]:
    """Return |own| as [1, layout, worker], and |share| and |own n share| as [class, layout, worker].

    At a reducing step a share is cut along the stored dimension or, where stored replicated, along the first eligible
    one; at a `*` step along the stored dimension.
    """
    ways, first = layouts.ways, first_eligible_masks(layouts.shape, layouts.ways)[0]
    reducing, same = classes.masks[:, -2, None], classes.masks[:, -1, None]
    own: Table = np.ones((1, 1, 1), dtype=np.int64)
    share, kept = own, own
    plain = _Classes(classes.of, classes.masks[:, :-2])
    for dim, axis in enumerate(_terms((landing,), plain)):
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
