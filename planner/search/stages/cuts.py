"""Where to cut a chain into stages: least crosses, where the slowest stage is about as fast as it can be.

Between layers one activation crosses, within a layer several: a cut there is worth a little less balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError

Runs = NDArray[np.float64]
"""[a, b]: of the links a to b - 1 as one stage; infinite where that cannot be."""

Allowed = NDArray[np.bool_]
"""[a, b]: whether the links a to b - 1 may be one stage."""

SLOWER = (1e-9, 0.01, 0.02, 0.05, 0.1)
"""By which shares the slowest stage may be slower than in the most balanced cut, for less to cross: the least first."""


def best_cut(
    costs: Sequence[float] | NDArray[np.float64], stages: int, crossing: Runs, fits: Allowed
) -> tuple[int, ...]:
    """Return where each stage begins, and the end of the last, by dynamic programming over the links.

    Least crosses of all cuts whose slowest stage is at most `SLOWER` than that of the most balanced one.

    `costs` are the links', `crossing` is what crosses into a run of them. Every stage has a link.
    Raises PlanError where there are too few links, or no cut fits.

    >>> none = np.zeros((5, 5))
    >>> best_cut([3, 1, 1, 1], 2, none, none == 0)
    (0, 1, 4)
    """
    ends = np.concatenate(([0.0], np.cumsum(costs)))
    if len(ends) <= stages:
        raise PlanError(f"stages: expected at most {len(ends) - 1}, the nodes that can be told apart, found {stages}")
    begin, end = np.indices((len(ends),) * 2)
    seconds = np.where((begin < end) & fits, ends[None, :] - ends[:, None], np.inf)
    slowest = _least(np.maximum, seconds, stages)[0]
    if slowest == np.inf:
        raise PlanError(f"stages: expected {stages} that fit in memory, found none: try more workers or stages")
    allowed = (np.where(seconds <= slowest * (1 + share), crossing, np.inf) for share in SLOWER)
    return min((_least(np.add, amounts, stages) for amounts in allowed), key=itemgetter(0))[1]


def _least(combine: np.ufunc, amounts: Runs, stages: int) -> tuple[float, tuple[int, ...]]:
    """Return the least combination of so many runs that follow each other, and where they begin and end."""
    best, froms = amounts[0], []
    for _ in range(stages - 1):
        extended = combine(best[:, None], amounts)
        froms.append(extended.argmin(axis=0))
        best = extended.min(axis=0)
    cut = [len(amounts) - 1]
    for earlier in reversed(froms):
        cut.append(int(earlier[cut[-1]]))
    return float(best[-1]), (0, *reversed(cut))
