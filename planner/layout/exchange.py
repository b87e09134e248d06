"""Exchanges: which worker sends which elements to which, counted and cut into pieces.

An exchange gives every worker the elements that it shall hold (targets) from those that all workers hold (sources). A
worker reads from the workers that share its digits at the `fixed` steps; together these hold everything it wants. With
a reducer, several of them hold partial results of the same elements, and all are read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.layout.region import Region, intersect, is_empty, lengths_in_common, subtract_all
from planner.layout.split import REMEMBERED, Runs
from planner.layout.ways import Ways

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
