"""The largest batch, a power of two, whose step fits in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from planner.errors import InputError
from simulator.systems import NoRoomError, TooFewSamplesError

MOST = 1 << 30


class Sized(Protocol):
    """What is made for a batch, in memory that may be limited."""

    @property
    def too_large(self) -> object:
        """Say if, or where, memory does not hold it."""

    @property
    def limited(self) -> object:
        """Say if, or where, memory is limited."""


S = TypeVar("S", bound=Sized)


def largest_batch(build: Callable[[int], S]) -> tuple[int, S]:
    """Return the largest power of two, and what is built for that batch.

    Larger batches need more memory. Raises a NoRoomError where no batch fits, an InputError where every batch would:
    where memory is unlimited, and of graphs that no batch makes large.
    """
    fitting, batch = None, 1
    while batch <= MOST:
        try:
            program = build(batch)
        except TooFewSamplesError:
            batch *= 2
            continue
        except NoRoomError:
            break
        if program.too_large:
            break
        if not program.limited:
            raise InputError("memory is unlimited here, so that every batch fits: give --batch")
        fitting = batch, program
        batch *= 2
    if fitting is None:
        raise NoRoomError("expected a batch that fits in memory, found none")
    if batch > MOST:
        raise InputError(f"more than {MOST:,} samples fit in memory: give --batch")
    return fitting
