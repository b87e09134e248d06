"""The common order: which transfer starts and ends in which slot, the moment before a compute unit or the end.

Within a slot, transfers of results come first, then fetches, then the unit; so whatever a slot needs is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from planner.layout import Exchange
from planner.plans.traffic import Read, Write
from planner.program.fusion import Unit


class Phase(IntEnum):
    """The order of events within a slot."""

    HOP_1_START = 0
    HOP_1_WAIT = 1
    HOP_2_START = 2
    HOP_2_WAIT = 3
    FETCH_START = 4
    FETCH_WAIT = 5
    COMPUTE = 6


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledTransfer:
    """An exchange in the common order: `read` for a fetch before a node, `write` and `hop` for a result's way home."""

    tensor: str
    exchange: Exchange
    read: Read | None = None
    write: Write | None = None
    hop: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """A transfer's start or wait, or a unit's computation, at its place in the common order."""

    slot: int
    phase: Phase
    what: ScheduledTransfer | Unit


def schedule(units: Sequence[Unit], prefetch: int) -> list[Event]:
    """Order every transfer and unit.

    A fetch starts no earlier than `prefetch` units before its consumer, and once what it reads is there. A result's
    transfer starts right after its unit and ends when first needed, at the latest `prefetch` units on.
    """
    first_use = _first_uses(units)
    available: dict[str, int] = {}
    events = []
    for j, unit in enumerate(units):
        for work in unit:
            for read in work.reads:
                if read.exchange is not None:
                    start = min(j, max(available.get(read.tensor, 0), j - prefetch))
                    transfer = ScheduledTransfer(read.tensor, read.exchange, read=read)
                    events += [Event(start, Phase.FETCH_START, transfer), Event(j, Phase.FETCH_WAIT, transfer)]
        events.append(Event(j, Phase.COMPUTE, unit))
        for write in unit[-1].writes:
            at = j + 1
            deadline = max(at, first_use.get(write.tensor, len(units)))
            for hop, exchange in enumerate(write.hops):
                transfer = ScheduledTransfer(write.tensor, exchange, write=write, hop=hop)
                end = min(at + prefetch, deadline)
                events += [Event(at, Phase(2 * hop), transfer), Event(end, Phase(2 * hop + 1), transfer)]
                at = end
            available[write.tensor] = at
    return sorted(events, key=lambda event: (event.slot, event.phase))


def _first_uses(units: Sequence[Unit]) -> Mapping[str, int]:
    """Return, per tensor, the first unit that reads it."""
    found: dict[str, int] = {}
    for j, unit in enumerate(units):
        for work in unit:
            for read in work.reads:
                found.setdefault(read.tensor, j)
    return found
