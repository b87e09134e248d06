"""The largest batch, a power of two, with which a system fits in memory."""

from __future__ import annotations

from collections.abc import Callable

from simulator.systems.system import Deployment, NoRoomError

START = 8
MOST = 1 << 20


def largest_batch(deploy: Callable[[int], Deployment], start: int = START) -> tuple[int, Deployment]:
    """Return the largest power of two, and what the system makes of a graph of that batch; nothing is simulated.

    Looks from `start` on, up or down, as batches that are larger need more memory. Raises a NoRoomError where a batch of 1
    does not fit, or none that the system can be given.
    """
    batch, found = start, _fitting(deploy, start)
    while found is None and batch > 1:
        batch //= 2
        found = _fitting(deploy, batch)
    if found is None:
        raise NoRoomError("expected a batch that fits in memory, found that 1 does not")
    while batch >= start:
        larger = _fitting(deploy, 2 * batch) if 2 * batch <= MOST else None
        if larger is None:
            break
        batch, found = 2 * batch, larger
    return batch, found


def _fitting(deploy: Callable[[int], Deployment], batch: int) -> Deployment | None:
    """Return what fits; None where nothing does."""
    try:
        found = deploy(batch)
    except NoRoomError:
        return None
    return None if found.too_large else found
