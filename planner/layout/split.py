"""How an extent is cut: nested splits, the digits of an index, and who is eligible. The one rounding rule is here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

REMEMBERED = 1 << 14
"""Entries of every cache of geometry. Alike layers share theirs, so that one plan of the largest zoo model has fewer; a
process that plans many forgets the oldest."""

Runs = tuple[tuple[int, int], ...]
"""Sorted, disjoint, non-adjacent half-open runs of indices."""


def part(extent: int, parts: int, number: int) -> tuple[int, int]:
    """Return the half-open range of part `number` when `extent` elements are cut into `parts`."""
    return extent * number // parts, extent * (number + 1) // parts


def digits(ways: Sequence[int], worker: int) -> tuple[int, ...]:
    """Return a rank's digits, one per step; step 1 is the most significant."""
    found = []
    for way in reversed(ways):
        worker, digit = divmod(worker, way)
        found.append(digit)
    return tuple(reversed(found))


def eligible(extent: int, ways: Sequence[int], step: int) -> bool:
    """Whether an extent can be split at step (counted from 0): then no part of it is empty."""
    return extent >= math.prod(ways[: step + 1])


def first_eligible(shape: Sequence[int], ways: Sequence[int], step: int) -> int | None:
    """Return the first dimension that can be split at `step`, or None."""
    return next((dim for dim, extent in enumerate(shape) if eligible(extent, ways, step)), None)


@lru_cache(REMEMBERED)
def chosen_runs(extent: int, chosen: tuple[int | None, ...], ways: tuple[int, ...]) -> Runs:
    """Return the indices whose digit at step i is `chosen[i]`, wherever that is not None.

    Every index of the extent has a digit at every step: which part of the nested split it fell in.
    """
    last = max((step for step, digit in enumerate(chosen) if digit is not None), default=-1)
    runs = [(0, extent)]
    for step in range(last + 1):
        digit = chosen[step]
        wanted = range(ways[step]) if digit is None else (digit,)
        runs = [
            (start + low, start + high)
            for start, stop in runs
            for low, high in (part(stop - start, ways[step], number) for number in wanted)
            if low < high
        ]
    return normalise(runs)


def iteration_runs(extent: int, steps: Iterable[int], ways: tuple[int, ...], worker: int) -> Runs:
    """Return the indices whose digit is the worker's at each of the given steps (counted from 0)."""
    at = set(steps)
    own = digits(ways, worker)
    return chosen_runs(extent, tuple(own[i] if i in at else None for i in range(len(ways))), ways)


def normalise(runs: Iterable[tuple[int, int]]) -> Runs:
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
