"""How an extent is cut: nested splits, the digits of an index, and who is eligible. The one rounding rule is here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

REMEMBERED = 1 << 14
"""Entries of every cache of geometry. Alike layers share theirs, so that one plan of the largest zoo model has fewer; a
process that plans many forgets the oldest."""

Runs = tuple[tuple[int, int], ...]
"""Sorted, disjoint, non-adjacent half-open runs of indices."""


Bounds = Sequence[int]
"""Where the parts of a cut end, in shares: 0, that of the first part, that of the first two, ..., that of all.

Equal parts have `range(parts + 1)`.
"""


class UnevenWays(tuple[int, ...]):
    """Ways of workers with different shares; `shares` are those of all workers, in the order of their ranks.

    Ways are a plain tuple where all shares are equal: `divided` makes what is due.
    """

    shares: tuple[int, ...]

    def __new__(cls, ways: Iterable[int], shares: Iterable[int]) -> UnevenWays:
        """Return ways, of which no function of a tuple but these may be asked for: a slice knows no shares."""
        found = super().__new__(cls, ways)
        found.shares = tuple(shares)
        return found

    def __repr__(self) -> str:
        return f"UnevenWays({tuple(self)}, {self.shares})"

    def __getnewargs__(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self), self.shares

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnevenWays) and self.shares == other.shares and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.shares))


def divided(ways: Sequence[int], shares: Sequence[int]) -> tuple[int, ...]:
    """Return the ways of workers with these shares, in lowest terms; without any, or with equal ones, a plain tuple."""
    common = math.gcd(*shares)
    if len(set(shares)) <= 1:
        return tuple(ways)
    return UnevenWays(ways, (share // common for share in shares))


def shares_of(ways: Sequence[int]) -> tuple[int, ...]:
    """Return the shares of all workers; none where they are equal."""
    return ways.shares if isinstance(ways, UnevenWays) else ()


def first_steps(ways: tuple[int, ...], steps: int | None) -> tuple[int, ...]:
    """Return the ways of the first steps (None: all), in which a group of workers is one with the shares of all."""
    if not isinstance(ways, UnevenWays):
        return ways[:steps]
    size = math.prod(ways[len(ways) if steps is None else steps :])
    return divided(ways[:steps], [sum(ways.shares[at : at + size]) for at in range(0, len(ways.shares), size)])


@lru_cache(REMEMBERED)
def cuts(ways: tuple[int, ...], worker: int) -> tuple[Bounds, ...]:
    """Return how each step cuts what the worker holds: in proportion to the shares of the groups that it is among.

    So a step's cut depends on the worker's digits at the steps before, if shares differ.
    """
    if not isinstance(ways, UnevenWays):
        return tuple(range(way + 1) for way in ways)
    found, group = [], ways.shares
    for way, digit in zip(ways, digits(ways, worker), strict=True):
        size = len(group) // way
        found.append((0, *accumulate(sum(group[at : at + size]) for at in range(0, len(group), size))))
        group = group[digit * size : (digit + 1) * size]
    return tuple(found)


def deciding(ways: tuple[int, ...], steps: Sequence[int]) -> Sequence[int]:
    """Return the steps at which a worker's digits decide what it holds of a dimension that is sharded at `steps`."""
    return range(max(steps, default=-1) + 1) if isinstance(ways, UnevenWays) else steps


def part(extent: int, bounds: Bounds, number: int) -> tuple[int, int]:
    """Return the half-open range of part `number` when `extent` elements are cut at `bounds`."""
    return extent * bounds[number] // bounds[-1], extent * bounds[number + 1] // bounds[-1]


def digits(ways: Sequence[int], worker: int) -> tuple[int, ...]:
    """Return a rank's digits, one per step; step 1 is the most significant."""
    found = []
    for way in reversed(ways):
        worker, digit = divmod(worker, way)
        found.append(digit)
    return tuple(reversed(found))


def eligible(extent: int, ways: tuple[int, ...], step: int) -> bool:
    """Whether an extent can be split at step (counted from 0): then no part of it is empty."""
    if not isinstance(ways, UnevenWays):
        return extent >= math.prod(ways[: step + 1])
    return _least_leaf(extent, ways, step) > 0


@lru_cache(REMEMBERED)
def _least_leaf(extent: int, ways: tuple[int, ...], step: int) -> int:
    """Return the length of the smallest range that steps up to this one make of an extent, by any worker's cuts."""
    least = extent
    for worker in range(0, math.prod(ways), math.prod(ways[step:])):
        lengths = {extent}
        for bounds in cuts(ways, worker)[: step + 1]:
            starts = ([length * bound // bounds[-1] for bound in bounds] for length in lengths)
            lengths = {stop - start for found in starts for start, stop in pairwise(found)}
        least = min(least, *lengths)
    return least


def first_eligible(shape: Sequence[int], ways: tuple[int, ...], step: int) -> int | None:
    """Return the first dimension that can be split at `step`, or None."""
    return next((dim for dim, extent in enumerate(shape) if eligible(extent, ways, step)), None)


@lru_cache(REMEMBERED)
def chosen_runs(extent: int, chosen: tuple[int | None, ...], cut_at: tuple[Bounds, ...]) -> Runs:
    """Return the indices whose digit at step i is `chosen[i]`, wherever that is not None, by a worker's cuts.

    Every index of the extent has a digit at every step: which part of the nested split it fell in.
    """
    last = max((step for step, digit in enumerate(chosen) if digit is not None), default=-1)
    runs = [(0, extent)]
    for bounds, digit in zip(cut_at[: last + 1], chosen, strict=False):
        wanted = range(len(bounds) - 1) if digit is None else (digit,)
        runs = [
            (start + low, start + high)
            for start, stop in runs
            for low, high in (part(stop - start, bounds, number) for number in wanted)
            if low < high
        ]
    return normalize(runs)


def iteration_runs(extent: int, steps: Iterable[int], ways: tuple[int, ...], worker: int) -> Runs:
    """Return the indices whose digit is the worker's at each of the given steps (counted from 0)."""
    at = set(steps)
    own = digits(ways, worker)
    return chosen_runs(extent, tuple(own[i] if i in at else None for i in range(len(ways))), cuts(ways, worker))


def normalize(runs: Iterable[tuple[int, int]]) -> Runs:
    """Sort runs and merge those that overlap or touch; empty ones vanish."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return tuple(merged)
