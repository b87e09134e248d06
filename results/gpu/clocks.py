"""Moments on a device's own clock, or on the host's where that computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

MILLISECOND = 1e-3


@dataclass(frozen=True, slots=True)
class Clock:
    """How a moment is marked, what lies between two, in seconds, and how what is under way is waited for."""

    mark: Callable[[], Any]
    between: Callable[[Any, Any], float]
    wait: Callable[[], None]

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds between neighbours, once the last has come."""
        self.wait()
        return [self.between(*pair) for pair in pairwise(marks)]


def host_clock() -> Clock:
    """Return the clock of this host."""
    return Clock(time.perf_counter, lambda first, second: float(second - first), lambda: None)


def cupy_clock(cupy: ModuleType) -> Clock:
    """Return a clock of events on CuPy's current stream."""

    def mark() -> Any:
        event = cupy.cuda.Event()
        event.record()
        return event

    def between(first: Any, second: Any) -> float:
        return float(cupy.cuda.get_elapsed_time(first, second)) * MILLISECOND

    return Clock(mark, between, lambda: cupy.cuda.Device().synchronize())


def torch_clock(torch: ModuleType) -> Clock:
    """Return a clock of events on PyTorch's current stream."""

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) * MILLISECOND

    return Clock(mark, between, partial(torch.cuda.synchronize))
