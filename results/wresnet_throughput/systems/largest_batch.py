"""The largest batch, a power of two, whose step fits in memory."""

from __future__ import annotations

from collections.abc import Callable

from planner.errors import InputError
from results.wresnet_throughput.systems.system import NoRoomError, SystemProgram, TooFewSamplesError

MOST = 1 << 30


def largest_batch(build: Callable[[int], SystemProgram]) -> tuple[int, SystemProgram]:
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
            raise InputError("memory is unlimited here, so that every batch fits")
        fitting = batch, program
        batch *= 2
    if fitting is None:
        raise NoRoomError("expected a batch that fits in memory, found none")
    if batch > MOST:
        raise InputError(f"more than {MOST:,} samples fit in memory")
    return fitting
