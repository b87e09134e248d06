"""Clocks that time work: the host's, and a device's, whose work runs behind the host that queues it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from executor.values import ArrayModule

MS = 1e-3


class Clock(Protocol):
    """Notes moments between pieces of work, and tells later when they were."""

    def read(self) -> Any:
        """Note this moment: on a device, when everything queued so far is done."""

    def seconds(self, moments: Sequence[Any]) -> list[float]:
        """Return noted moments in seconds from a common origin; waits for a device."""

    @property
    def is_device(self) -> bool:
        """True if moments are a device's."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """A clock of the host's, in seconds."""

    now: Callable[[], float] = time.perf_counter
    is_device: ClassVar[bool] = False

    def read(self) -> float:
        """Note this moment."""
        return self.now()

    def seconds(self, moments: Sequence[float]) -> list[float]:
        """Return the moments."""
        return list(moments)


@dataclass(frozen=True, slots=True)
class EventClock:
    """Events on the current stream of CuPy's, where kernels of PyTorch's run, too."""

    xp: ArrayModule
    is_device: ClassVar[bool] = True

    def read(self) -> Any:
        """Record an event."""
        event = self.xp.cuda.Event()
        event.record(self.xp.cuda.get_current_stream())
        return event

    def seconds(self, moments: Sequence[Any]) -> list[float]:
        """Return when events were reached, from the first one on."""
        moments[-1].synchronize()
        return [self.xp.cuda.get_elapsed_time(moments[0], moment) * MS for moment in moments]


HOST_CLOCK = HostClock()


def clock_of(xp: ArrayModule) -> Clock:
    """Return the clock that times what an array module computes."""
    return HOST_CLOCK if xp is np else EventClock(xp)


def elapsed_s(clock: Clock, work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    moments = [clock.read()]
    work()
    moments.append(clock.read())
    start, stop = clock.seconds(moments)
    return stop - start
