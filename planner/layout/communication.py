"""Collectives: exchanges that match a library's operation within each group of workers.

A collective describes an exchange and does not replace it: the operation brings every worker exactly what the
exchange's pieces bring (docs/explanation/collectives.md). Exchanges that match no operation are messages between pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.grouping import grouped
from planner.layout.region import (
    REMEMBERED,
    Region,
    Runs,
    elements,
    intersect,
    is_empty,
    lengths_in_common,
    subtract_all,
)
from planner.layout.ways import Ways
from topologies.schema import Operation

# Exchanges: which worker sends which elements to which, counted and cut into pieces.
#
# An exchange gives every worker the elements that it shall hold (targets) from those that all workers hold
# (sources). A worker reads from the workers that share its digits at the `fixed` steps; together these hold
# everything it wants. With a reducer, several of them hold partial results of the same elements, and all are read.


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=NDArray[Any])

MEMO_BYTES = 1 << 28
"""Bytes that the cached results of one function may take together; the oldest are dropped."""


def remembered(function: Callable[[K], V]) -> Callable[[K], V]:
    """Return the function with its results cached."""
    results: dict[K, V] = {}
    taken = 0

    @wraps(function)
    def recall(key: K) -> V:
        nonlocal taken
        if (result := results.get(key)) is None:
            result = results[key] = function(key)
            taken += result.nbytes
            while taken > MEMO_BYTES and len(results) > 1:
                taken -= results.pop(next(iter(results))).nbytes
        return result

    return recall


@dataclass(frozen=True, slots=True)
class Exchange:
    """One transfer for all workers.

    `already` lists earlier fetches of the same tensor that a worker may copy from, each with what every worker fetched
    then: those elements do not move again.
    """

    ways: Ways
    sources: tuple[Region, ...]
    targets: tuple[Region, ...]
    fixed: frozenset[int] = frozenset()
    reducer: str | None = None
    already: tuple[tuple[Region, ...], ...] = ()

    def moved(self) -> NDArray[np.int64]:
        """Return the matrix of elements sent from worker (row) to worker (column)."""
        return count(self)

    def wanted(self, worker: int) -> tuple[Region, ...]:
        """Return disjoint regions that hold what the worker must read now."""
        return subtract_all(self.targets[worker], [earlier[worker] for earlier in self.already])

    def reads(self, worker: int) -> Iterator[tuple[int, tuple[Region, ...]]]:
        """Yield every worker that this one reads from, including itself, in ascending order, with the regions."""
        wanted = self.wanted(worker)
        for source in peers(self.ways, self.fixed, worker):
            overlaps = (intersect(box, self.sources[source]) for box in wanted)
            if regions := tuple(region for region in overlaps if not is_empty(region)):
                yield source, regions


@lru_cache(REMEMBERED)
def peers(ways: Ways, fixed: frozenset[int], worker: int) -> tuple[int, ...]:
    """Return the workers that share the worker's digits at the fixed steps, in ascending order."""
    return tuple(int(other) for other in np.flatnonzero(sharing(ways, fixed)[:, worker]))


def sharing(ways: Ways, fixed: frozenset[int]) -> NDArray[np.bool_]:
    """Return True for pairs of workers whose digits agree at every fixed step: [worker, worker]."""
    digits = np.array(ways.digits_of_workers()).reshape(ways.workers, len(ways))
    steps = sorted(fixed)
    return np.asarray((digits[:, None, steps] == digits[None, :, steps]).all(axis=2))


@remembered
def count(exchange: Exchange) -> NDArray[np.int64]:
    """Count the elements of an exchange by intersecting runs, dimension by dimension; exact for any regions."""
    fetched = list(zip(exchange.targets, *exchange.already, strict=True))
    wanted = {key: subtract_all(key[0], key[1:]) for key in dict.fromkeys(fetched)}  # many workers want the same
    pieces = [wanted[key] for key in fetched]
    total = np.zeros((len(pieces), len(pieces)), dtype=np.int64)
    for number in range(max(map(len, pieces), default=0)):
        having = [worker for worker, boxes in enumerate(pieces) if number < len(boxes)]
        total[:, having] += _overlaps(exchange.sources, [pieces[worker][number] for worker in having])
    total[~sharing(exchange.ways, exchange.fixed)] = 0
    np.fill_diagonal(total, 0)
    total.flags.writeable = False
    return total


def _overlaps(sources: tuple[Region, ...], targets: list[Region]) -> NDArray[np.int64]:
    """Return |source n target| for every pair: a product over dimensions of one-dimensional counts."""
    holders = [worker for worker, region in enumerate(sources) if not is_empty(region)]
    product = np.ones((len(holders), len(targets)), dtype=np.int64)
    held = [sources[worker] for worker in holders]
    for rows, columns in zip(zip(*held, strict=True), zip(*targets, strict=True), strict=True):
        product *= _overlaps_in_one_dimension(rows, columns)
    overlaps = np.zeros((len(sources), len(targets)), dtype=np.int64)
    overlaps[holders] = product
    return overlaps


def _overlaps_in_one_dimension(rows: tuple[Runs, ...], columns: tuple[Runs, ...]) -> NDArray[np.int64]:
    left, right = list(dict.fromkeys(rows)), list(dict.fromkeys(columns))  # most workers share their runs
    table = lengths_in_common(left, right)
    at_left, at_right = ({runs: number for number, runs in enumerate(distinct)} for distinct in (left, right))
    return table[np.ix_([at_left[runs] for runs in rows], [at_right[runs] for runs in columns])]


UNNAMED = "workers"
"""Axis name of steps without a name, as in plans found by a search."""


def by_axis(moved: NDArray[np.int64], ways: Ways) -> dict[str, int]:
    """Return the entries of a matrix [worker, worker], summed by the axes along which sender and receiver differ.

    >>> by_axis(np.array([[0, 1, 2, 4]] + [[0, 0, 0, 0]] * 3), Ways((2, 2), axes=("dp", "tp")))
    {'dp': 2, 'tp': 1, 'dp x tp': 4}
    """
    digits, result = np.array(ways.digits_of_workers()), dict[str, int]()
    axes = ways.axes or ("",) * len(ways)
    kinds = sum((digits[:, None, step] != digits[:, step]) << step for step in range(len(axes)))
    totals = np.bincount(np.ravel(kinds), moved.ravel())  # exact below 2^53
    for kind in np.flatnonzero(totals).tolist():
        name = axes_name(axis for step, axis in enumerate(axes) if kind >> step & 1)
        result[name] = result.get(name, 0) + int(totals[kind])
    return result


@lru_cache(REMEMBERED)
def exchanged_by_axis(exchange: Exchange) -> dict[str, int]:
    """Return the elements that an exchange moves, by axes."""
    return by_axis(exchange.moved(), exchange.ways)


def axes_name(axes: Iterable[str]) -> str:
    """Return the joint name of several axes, each once."""
    return " x ".join(dict.fromkeys(axis or UNNAMED for axis in axes))


# Collectives.


HALVES = (("reduce-scatter", "all-gather"), ("reduce", "broadcast"))
"""Pairs of collectives that together form an all-reduce."""


@dataclass(frozen=True, slots=True)
class Group:
    """Workers that take part in one collective together, ascending, and its payload.

    `elements` are those of the whole tensor that is gathered, scattered, reduced or broadcast; for an all-to-all, the
    most that one worker has before or after it.
    """

    workers: tuple[int, ...]
    elements: int


@dataclass(frozen=True, slots=True)
class Collective:
    """The operation of an exchange in each group that moves anything; a group's workers differ in digits at `steps`.

    `is_half` is True for the first or second half of an all-reduce in two hops.
    """

    kind: Operation
    steps: tuple[int, ...]
    groups: tuple[Group, ...]
    is_half: bool = False

    @property
    def operation(self) -> tuple[Operation, float]:
        """The library operation that it is, and the fraction of one."""
        return ("all-reduce", 0.5) if self.is_half else (self.kind, 1.0)


@lru_cache(REMEMBERED)
def collectives(hops: tuple[Exchange, ...]) -> tuple[Collective | None, ...]:
    """Return the collective of each hop of a result; two hops of one group may be the halves of an all-reduce."""
    per_hop = tuple(map(collective, hops))
    match per_hop:
        case (Collective() as first, Collective() as second):
            if (first.kind, second.kind) in HALVES and first.groups == second.groups:
                return replace(first, is_half=True), replace(second, is_half=True)
    return per_hop


@lru_cache(REMEMBERED)
def collective(exchange: Exchange) -> Collective | None:
    """Return the collective that an exchange is; None if it is none or nothing moves.

    >>> from planner.layout import Ways, owned_by_all, Shard
    >>> ways = Ways((2, 2))
    >>> rows, all_rows = owned_by_all((4, 4), (Shard(0), Shard(1)), ways), owned_by_all((4, 4), (Shard(1),) * 2, ways)
    >>> all_to_all = collective(Exchange(ways, rows, all_rows, frozenset({1})))
    >>> all_to_all.kind, all_to_all.steps, [group.workers for group in all_to_all.groups]
    ('all-to-all', (0,), [(0, 2), (1, 3)])
    """
    moved = exchange.moved()
    if exchange.already or not moved.any():
        return None
    steps = _steps(exchange.ways, moved)
    moving = [group for group in groups_of(exchange.ways, steps) if moved[np.ix_(group, group)].any()]
    groups = [_group(exchange, workers) for workers in moving]
    kinds = {kind for kind, _ in groups}
    kind = kinds.pop()
    return Collective(kind, steps, tuple(group for _, group in groups)) if kind is not None and not kinds else None


@lru_cache(REMEMBERED)
def groups_of(ways: Ways, steps: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of workers whose digits differ only at these steps, in the order of their first workers."""
    others = (tuple(d for step, d in enumerate(of) if step not in steps) for of in ways.digits_of_workers())
    return tuple(map(tuple, grouped((key, worker) for worker, key in enumerate(others)).values()))


def _steps(ways: Ways, moved: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the steps at which the digits of any two communicating workers differ."""
    digits = np.array(ways.digits_of_workers())
    sources, targets = np.nonzero(moved)
    return tuple(np.flatnonzero((digits[sources] != digits[targets]).any(axis=0)).tolist())


def _group(exchange: Exchange, workers: tuple[int, ...]) -> tuple[Operation | None, Group]:
    """Return the operation of some workers that exchange with nobody else, and their group."""
    sources, targets = [exchange.sources[w] for w in workers], [exchange.targets[w] for w in workers]
    kind = _gathered(sources, targets) if exchange.reducer is None else _reduced(sources, targets)
    return kind, Group(workers, max(map(elements, (*sources, *targets))))


def _gathered(sources: Sequence[Region], targets: Sequence[Region]) -> Operation | None:
    if _are_equal(targets) and _are_parts(sources, targets[0]):
        return "all-gather" if len(_parts(sources)) > 1 else "broadcast"
    return "all-to-all" if _are_parts_of_each_other(sources, targets) else None


def _reduced(sources: Sequence[Region], targets: Sequence[Region]) -> Operation | None:
    if not _are_equal(sources):
        return None
    if _are_equal(targets):
        return "all-reduce" if targets[0] == sources[0] else None
    if _are_parts(targets, sources[0]):
        return "reduce-scatter" if len(_parts(targets)) > 1 else "reduce"
    return None


def _are_equal(regions: Sequence[Region]) -> bool:
    return len(set(regions)) == 1


def _parts(regions: Sequence[Region]) -> list[Region]:
    return [region for region in regions if not is_empty(region)]


def _are_parts(regions: Sequence[Region], whole: Region) -> bool:
    """Return True if the regions, some perhaps empty, are disjoint and together equal the whole."""
    parts = _parts(regions)
    inside = all(intersect(region, whole) == region for region in parts)
    return inside and _are_disjoint(parts) and sum(map(elements, parts)) == elements(whole)


def _are_parts_of_each_other(sources: Sequence[Region], targets: Sequence[Region]) -> bool:
    """Return True if disjoint sources and disjoint targets cover the same, and every source meets every target."""
    common = np.array([[elements(intersect(source, target)) for target in targets] for source in sources])
    held, wanted = (np.array(list(map(elements, regions))) for regions in (sources, targets))
    return bool(
        common.all()
        and (common.sum(axis=0) == wanted).all()
        and (common.sum(axis=1) == held).all()
        and _are_disjoint(sources)
        and _are_disjoint(targets)
    )


def _are_disjoint(regions: Sequence[Region]) -> bool:
    """Return True if no two regions meet: none are equal, and in each dimension runs are equal or disjoint."""
    per_dimension = (set(runs) for runs in zip(*regions, strict=True))
    return len(set(regions)) == len(regions) and all(map(_never_meet, per_dimension))


def _never_meet(alternatives: set[Runs]) -> bool:
    runs = sorted(run for runs in alternatives for run in runs)
    return all(stop <= start for (_, stop), (start, _) in pairwise(runs))
