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


def _clock_of_events(
    event: Callable[[], Any], elapsed_ms: Callable[[Any, Any], Any], wait: Callable[[], None]
) -> Clock:
    def mark() -> Any:
        recorded = event()
        recorded.record()
        return recorded

    return Clock(mark, lambda first, second: float(elapsed_ms(first, second)) * MILLISECOND, wait)


def cupy_clock(cupy: ModuleType) -> Clock:
    """Return a clock of events on CuPy's current stream."""
    cuda = cupy.cuda
    return _clock_of_events(cuda.Event, cuda.get_elapsed_time, lambda: cuda.Device().synchronize())


def torch_clock(torch: ModuleType) -> Clock:
    """Return a clock of events on PyTorch's current stream."""
    event = torch.cuda.Event
    return _clock_of_events(partial(event, enable_timing=True), event.elapsed_time, partial(torch.cuda.synchronize))
