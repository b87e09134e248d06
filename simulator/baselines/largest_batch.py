"""The largest batch, a power of two, with which a system fits in memory."""

from __future__ import annotations

from collections.abc import Callable

from planner.errors import InputError
from simulator.systems import NoRoomError, SystemProgram, TooFewSamplesError

START = 8
MOST = 1 << 30


def largest_batch(build: Callable[[int], SystemProgram], start: int = START) -> tuple[int, SystemProgram]:
    """Return the largest power of two, and what the system makes of a graph of that batch; nothing is simulated.

    Looks up or down from `start`, as larger batches need more memory. Raises a NoRoomError where no batch fits, an
    InputError where every batch would: where memory is unlimited, and of graphs that no batch makes large.
    """
    batch, fitting = start, None
    while batch <= MOST:
        try:
            program = build(batch)
        except TooFewSamplesError:
            if batch < start:
                break
            start = batch = 2 * batch
            continue
        except NoRoomError:
            program = None
        if program is None or program.too_large:
            if fitting is not None or batch == 1:
                break
            batch //= 2
        elif not program.limited:
            raise InputError("memory is unlimited here, so that every batch fits: give --batch")
        else:
            fitting = batch, program
            if batch < start:
                break
            batch *= 2
    if batch > MOST and fitting is not None:
        raise InputError(f"more than {MOST:,} samples fit in memory: give --batch")
    if fitting is None:
        raise NoRoomError("expected a batch that fits in memory, found none")
    return fitting
