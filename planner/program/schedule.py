"""The common order: which transfer starts and ends in which slot, the moment before a compute unit or the end.

Within a slot, transfers of results come first, then fetches, then the unit; so whatever a slot needs is there. Nothing
is on its way from one phase to another but what adds up over micro-batches: it goes where the last one has been added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from planner.graph.micro_batches import EVERY, PHASES, UPDATE
from planner.layout import Collective, Exchange, collectives
from planner.plans.traffic import Read, Write
from planner.program.fusion import Unit


class Turn(IntEnum):
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
    """An exchange in the common order: `read` for a fetch before a node, `write` and `hop` for a result's way home.

    It is made so many times in an iteration.
    """

    tensor: str
    exchange: Exchange
    read: Read | None = None
    write: Write | None = None
    hop: int = 0
    runs: int = 1

    @property
    def collective(self) -> Collective | None:
        """What the exchange is to a library; of a result in two hops, maybe a half of an all-reduce."""
        return collectives((self.exchange,) if self.write is None else self.write.hops)[self.hop]


@dataclass(frozen=True, slots=True)
class Event:
    """A transfer's start or wait, or a unit's computation, at its place in the common order.

    One that is `closing` comes for the last micro-batch alone.
    """

    slot: int
    turn: Turn
    what: ScheduledTransfer | Unit
    phase: str

    @property
    def closing(self) -> bool:
        """Whether it comes for the last micro-batch alone, though its phase runs for every one."""
        return self.phase in EVERY and isinstance(self.what, ScheduledTransfer) and _adds_up(self.what)


def in_common_order(events: Sequence[Event]) -> list[Event]:
    """Return events by phase, slot and turn."""
    return sorted(events, key=lambda event: (PHASES.index(event.phase), event.slot, event.turn))


def schedule(units: Sequence[Unit], prefetch: int) -> list[Event]:
    """Order every transfer and unit.

    A fetch starts no earlier than `prefetch` units before its consumer, and once what it reads is there. A result's
    transfer starts right after its unit and ends when first needed, at the latest `prefetch` units on.
    """
    return in_common_order([*_Events(units, prefetch).events()])


class _Events:
    def __init__(self, units: Sequence[Unit], prefetch: int) -> None:
        self._units, self._prefetch = units, prefetch
        self._first_use = _first_uses(units)
        self._available: dict[str, int] = {}
        self._phases = [unit[-1].phase for unit in units]
        self._ends = _ends_of_phases(self._phases)

    def events(self) -> Iterator[Event]:
        first = 0
        for j, unit in enumerate(self._units):
            first = first if j and self._phases[j] == self._phases[j - 1] else j
            yield from self._fetches(j, unit, first)
            yield Event(j, Turn.COMPUTE, unit, self._phases[j])
            yield from self._stores(j, unit)

    def _fetches(self, j: int, unit: Unit, first: int) -> Iterator[Event]:
        for work in unit:
            for read in work.reads:
                if read.exchange is not None:
                    start = min(j, max(self._available.get(read.tensor, 0), j - self._prefetch, first))
                    transfer = ScheduledTransfer(read.tensor, read.exchange, read=read, runs=work.runs)
                    yield Event(start, Turn.FETCH_START, transfer, work.phase)
                    yield Event(j, Turn.FETCH_WAIT, transfer, work.phase)

    def _stores(self, j: int, unit: Unit) -> Iterator[Event]:
        for write in unit[-1].writes:
            at = j + 1
            deadline = max(at, self._first_use.get(write.tensor, len(self._units)))
            runs = 1 if write.adds_up else unit[-1].runs
            for hop, exchange in enumerate(write.hops):
                transfer = ScheduledTransfer(write.tensor, exchange, write=write, hop=hop, runs=runs)
                end = min(at + self._prefetch, deadline)
                if not write.adds_up:
                    end = min(end, self._ends[j])
                for slot, turn in ((at, Turn(2 * hop)), (end, Turn(2 * hop + 1))):
                    yield Event(slot, turn, transfer, self._phase_at(slot) if write.adds_up else self._phases[j])
                at = end
            self._available[write.tensor] = at

    def _phase_at(self, slot: int) -> str:
        return self._phases[slot] if slot < len(self._units) else UPDATE


def _ends_of_phases(phases: Sequence[str]) -> list[int]:
    """Return, per unit, the slot behind the last unit of its phase."""
    ends = [len(phases)] * len(phases)
    for j in reversed(range(len(phases) - 1)):
        ends[j] = ends[j + 1] if phases[j] == phases[j + 1] else j + 1
    return ends


def _adds_up(transfer: ScheduledTransfer) -> bool:
    return transfer.write is not None and transfer.write.adds_up


def _first_uses(units: Sequence[Unit]) -> Mapping[str, int]:
    """Return, per tensor, the first unit that reads it."""
    found: dict[str, int] = {}
    for j, unit in enumerate(units):
        for work in unit:
            for read in work.reads:
                found.setdefault(read.tensor, j)
    return found
