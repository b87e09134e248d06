"""CPU time of two functions that do the same, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

Function = Callable[[], object]


def cpu_ms(function: Function) -> float:
    """Return the milliseconds of CPU that the process spends in a call."""
    started = time.process_time()
    function()
    return (time.process_time() - started) * 1e3


def side_by_side(ours: Function, theirs: Function, pairs: int) -> dict[str, float]:
    """Call both in turns, after one call of each; return the median of either's milliseconds, and of their ratios."""
    cpu_ms(ours), cpu_ms(theirs)
    found = [(cpu_ms(ours), cpu_ms(theirs)) for _ in range(pairs)]
    return {
        "turns": pairs,
        "ours_ms": round(statistics.median(mine for mine, _ in found), 3),
        "pytorch_ms": round(statistics.median(other for _, other in found), 3),
        "ratio": round(statistics.median(mine / other for mine, other in found), 3),
    }
