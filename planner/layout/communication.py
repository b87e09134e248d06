"""Collectives: exchanges that match a library's operation within each group of workers.

A collective describes an exchange and does not replace it: the operation brings every worker exactly what the
exchange's pieces bring (docs/explanation/collectives.md). Exchanges that match no operation are messages between pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.layout.exchange import Exchange
from planner.layout.region import Region, elements, intersect, is_empty
from planner.layout.split import REMEMBERED, Runs
from planner.layout.ways import Ways
from topologies.schema import Operation

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
    groups: dict[tuple[int, ...], list[int]] = {}
    for worker, digits in enumerate(ways.digits_of_workers()):
        groups.setdefault(tuple(d for step, d in enumerate(digits) if step not in steps), []).append(worker)
    return tuple(map(tuple, groups.values()))


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
