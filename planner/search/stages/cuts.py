"""Cut a chain into stages: move as few bytes as possible, with the slowest stage about as fast as possible.

One activation crosses between layers, several within a layer: a cut between layers is worth slightly less balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError

Runs = NDArray[np.float64]
"""Bytes that cross into the links a to b - 1 as one stage: [a, b]. Infinite where such a stage is impossible."""

Allowed = NDArray[np.bool_]
"""True where the links a to b - 1 may be one stage: [a, b]."""

SLOWER = (1e-9, 0.01, 0.02, 0.05, 0.1)
"""Fractions by which the slowest stage may exceed that of the most balanced cut to reduce the bytes that cross."""


def best_cut(
    costs: Sequence[float] | NDArray[np.float64], stages: int, crossing: Runs, fits: Allowed
) -> tuple[int, ...]:
    """Return the first link of each stage, and the end of the last, by dynamic programming over the links.

    Among the cuts whose slowest stage exceeds that of the most balanced cut by at most a fraction in `SLOWER`, the cut
    with the fewest bytes crossing is returned.

    `costs` are the costs of the links, `crossing` is what crosses into a run of links. Every stage has at least one
    link. Raises PlanError if there are too few links or no cut fits.

    >>> none = np.zeros((5, 5))
    >>> best_cut([3, 1, 1, 1], 2, none, none == 0)
    (0, 1, 4)
    """
    ends = np.concatenate(([0.0], np.cumsum(costs)))
    if len(ends) <= stages:
        raise PlanError(f"stages: the graph can be cut into at most {len(ends) - 1}, found {stages}")
    begin, end = np.indices((len(ends),) * 2)
    seconds = np.where((begin < end) & fits, ends[None, :] - ends[:, None], np.inf)
    slowest = _least(np.maximum, seconds, stages)[0]
    if slowest == np.inf:
        raise PlanError(f"stages: no cut into {stages} fits in memory; use more workers or stages")
    allowed = (np.where(seconds <= slowest * (1 + share), crossing, np.inf) for share in SLOWER)
    return min((_least(np.add, amounts, stages) for amounts in allowed), key=itemgetter(0))[1]


def _least(combine: np.ufunc, amounts: Runs, stages: int) -> tuple[float, tuple[int, ...]]:
    """Return the least combination of `stages` consecutive runs, and where they begin and end."""
    best, froms = amounts[0], []
    for _ in range(stages - 1):
        extended = combine(best[:, None], amounts)
        froms.append(extended.argmin(axis=0))
        best = extended.min(axis=0)
    cut = [len(amounts) - 1]
    for earlier in reversed(froms):
        cut.append(int(earlier[cut[-1]]))
    return float(best[-1]), (0, *reversed(cut))
