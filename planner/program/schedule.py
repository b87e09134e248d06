"""The common order: the slot in which each transfer starts and ends; a slot precedes a compute unit or the end.

Within a slot, transfers of results come first, then fetches, then the unit, so everything that a slot needs is there.
No transfer spans two phases, except sums over micro-batches, which move after the last one was added.

If stages have individual orders, a transfer between stages has two parts. Its sender starts it as soon as the data is
available and continues; it waits for the end in a separate part, which comes after the receiver has begun. The receiver
receives everything that a phase needs before that phase, in the order in which it is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

import numpy as np

from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.graph.micro_batches import FORWARD, UPDATE
from planner.layout import Collective, Exchange, collectives, elements, group_of
from planner.layout.region import nothing
from planner.plans.records import chunk_of, is_repeated, kind_of, of_chunk
from planner.plans.traffic import NodeTraffic, Read, Write

# Compute units: single nodes, or chains of element-wise nodes without buffers between them; and sums in place.


Unit = tuple[NodeTraffic, ...]


def compute_units(graph: Graph, work: Sequence[NodeTraffic], kept: frozenset[str]) -> list[Unit]:
    """Group neighbouring element-wise nodes into chains.

    A node joins the chain before it if it is the only reader of the chain's result, reads it as it lies, and produces
    an equal region in its place. `kept` names results that must be stored anyway. A tensor that accumulates over
    micro-batches is already in place, and a chain stays within its phase.
    """
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    units: list[Unit] = []
    for item in work:
        if units and _continues(graph, units[-1][-1], item, readers, kept):
            units[-1] = (*units[-1], item)
        else:
            units.append((item,))
    return units


def _continues(
    graph: Graph, before: NodeTraffic, after: NodeTraffic, readers: Counter[str], kept: frozenset[str]
) -> bool:
    if not (before.signature.description.is_elementwise and after.signature.description.is_elementwise):
        return False
    if before.accumulates or len(before.writes) != 1 or len(after.writes) != 1:
        return False
    (write,), (following,) = before.writes, after.writes
    if before.phase != after.phase or following.adds_up:
        return False
    if write.hops or write.tensor in kept or readers[write.tensor] != 1:
        return False
    reads = [read for read in after.reads if read.tensor == write.tensor]
    return (
        len(reads) == 1
        and is_direct(reads[0])
        and write.production.regions == following.production.regions
        and graph.tensors[write.tensor].dtype == graph.tensors[following.tensor].dtype
    )


def is_direct(read: Read) -> bool:
    """Return True if a read needs exactly what the worker holds."""
    return read.exchange is None and read.same_as is None


def add_in_place(graph: Graph, work: Sequence[NodeTraffic]) -> list[NodeTraffic]:
    """Return the work without the sums that are computed in place.

    The last node that computes a term writes the sum.
    """
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    makers = {write.tensor: item for item in work for write in item.writes if readers[write.tensor] == 1}
    result: dict[str, NodeTraffic] = {}
    for item in work:
        mine = (name for name in item.node.inputs if name in makers and makers[name].phase == item.phase)
        terms = dict.fromkeys(name for name in mine if _is_term(makers[name]))
        direct = all(map(is_direct, item.reads))
        if item.signature.description.adds_operands and direct and 1 < len(terms) == len(item.node.inputs):
            result |= _summands([result[makers[name].node.name] for name in terms], item, result)
        else:
            result[item.node.name] = item
    return list(result.values())


def _is_term(item: NodeTraffic) -> bool:
    """Return True if a node's only result is a sum that stays where it is computed."""
    (output, *others), writes = item.signature.description.outputs, item.writes
    return not others and output.reducer == "Sum" and not writes[0].hops


def _summands(terms: Sequence[NodeTraffic], total: NodeTraffic, order: Mapping[str, object]) -> dict[str, NodeTraffic]:
    """Return the nodes that compute terms, changed to add to the sum."""
    place = {name: number for number, name in enumerate(order)}
    last = max(terms, key=lambda item: place[item.node.name])
    return {
        item.node.name: replace(item, writes=total.writes if item is last else (), accumulates=total.node.name)
        for item in terms
    }


# The common order.


SENT = " sent to "


def arriving(phase: str) -> str:
    """Return the name of the part before a phase, in which a stage receives what the phase needs from others."""
    return f"{phase} arriving"


def is_waiting(part: str) -> bool:
    """Return True if in this part of a program a sender waits for the end of its transfers."""
    return SENT in part


class InSlot(IntEnum):
    """The order of events within a slot."""

    ARRIVAL_START = -2
    ARRIVAL_WAIT = -1
    HOP_1_START = 0
    HOP_1_WAIT = 1
    HOP_2_START = 2
    HOP_2_WAIT = 3
    FETCH_START = 4
    FETCH_WAIT = 5
    COMPUTE = 6


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledTransfer:
    """An exchange in the common order: with `read`, a fetch before a node; with `write` and `hop`, a hop of a result.

    It happens `runs` times in an iteration. One that `crosses` goes from one stage to another.
    """

    tensor: str
    exchange: Exchange
    read: Read | None = None
    write: Write | None = None
    hop: int = 0
    runs: int = 1
    crosses: bool = False

    @property
    def collective(self) -> Collective | None:
        """The collective that the exchange is in a library's terms; for two hops, perhaps half of an all-reduce.

        None between stages, which do not reach it in one order.
        """
        if self.crosses:
            return None
        if self.write is None or self.write.hops[self.hop] is not self.exchange:
            return collectives((self.exchange,))[0]
        return collectives(self.write.hops)[self.hop]


class End(Enum):
    """Participants of an event: all, or one end of a transfer between stages."""

    BOTH = "both"
    SENDER = "sender"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True)
class Event:
    """A transfer's start or wait, or a unit's computation, at its position in the common order.

    A `closing` event happens for the last micro-batch only. `to` is the stage and phase of the receiver that a sender
    waits for. The arrivals of a phase come in the order in which they are `sent`, by slot and turn.
    """

    slot: int
    turn: InSlot
    what: ScheduledTransfer | Unit
    phase: str
    end: End = End.BOTH
    to: tuple[int, str] | None = None
    sent: tuple[int, int] = (0, 0)

    @property
    def closing(self) -> bool:
        """True if it happens for the last micro-batch only, although its phase runs for every micro-batch."""
        return is_repeated(self.phase) and isinstance(self.what, ScheduledTransfer) and _adds_up(self.what)

    @property
    def part(self) -> str:
        """The part of the program it belongs to: its phase, the arrivals before the phase, or a sender's wait."""
        if self.end is End.RECEIVER:
            return arriving(self.phase)
        return self.phase if self.to is None else f"{self.phase}{SENT}{self.to[0]} {self.to[1]}"


def in_common_order(events: Sequence[Event], order: Sequence[str]) -> list[Event]:
    """Return events by phase (arrivals first, senders' waits last), then by slot and turn."""
    places = {phase: place for place, phase in enumerate(order)}
    return sorted(
        events,
        key=lambda event: (
            places[event.phase],
            (-2, "") if event.end is End.RECEIVER else event.to or (-1, ""),
            event.slot,
            event.turn,
            event.sent,
        ),
    )


@dataclass(frozen=True, slots=True)
class StagesOfWorkers:
    """The stage of every worker, if stages have individual orders, and the order of the phases."""

    stage_of: tuple[int, ...]
    order: tuple[str, ...]

    def parts(self, exchange: Exchange) -> Iterator[Part]:
        """Yield the parts of an exchange by receiving stage if it crosses stages; else the exchange itself."""
        stages = np.array(self.stage_of)
        if len(set(self.stage_of)) == 1 or not (exchange.moved()[stages[:, None] != stages]).any():
            yield Part(exchange)
            return
        for stage in sorted(set(self.stage_of)):
            targets = tuple(
                target if own == stage else nothing(tuple(map(len, target)))
                for own, target in zip(self.stage_of, exchange.targets, strict=True)
            )
            if any(map(elements, targets)):
                part = replace(exchange, targets=targets)
                senders = {*stages[np.nonzero(part.moved())[0]].tolist()} or {stage}
                if len(senders) > 1:
                    raise PlanError(f"stage {stage} reads one tensor from several stages at once, {sorted(senders)}")
                yield Part(part, senders.pop(), stage)


@dataclass(frozen=True, slots=True)
class Part:
    """An exchange or a part of it, with its sending and receiving stage if it is a part."""

    exchange: Exchange
    sender: int | None = None
    receiver: int | None = None

    @property
    def crosses(self) -> bool:
        """True if it goes from one stage to another."""
        return self.sender != self.receiver


def schedule(units: Sequence[Unit], prefetch: int, staging: StagesOfWorkers) -> list[Event]:
    """Return every transfer and unit in order.

    A fetch starts at most `prefetch` units before its consumer, after its source is available. A result's transfer
    starts right after its unit and ends when it is first needed, at most `prefetch` units later.
    """
    return in_common_order([*_Events(units, prefetch, staging).events()], staging.order)


class _Events:
    def __init__(self, units: Sequence[Unit], prefetch: int, staging: StagesOfWorkers) -> None:
        self._units, self._prefetch, self._staging = units, prefetch, staging
        self._readers = _readers(units)
        self._available: dict[str, int] = {}
        self._stored_in: dict[str, str] = {}
        self._phases = [unit[-1].phase for unit in units]
        self._firsts = {phase: j for j, phase in reversed([*enumerate(self._phases)])}
        self._ends = _ends_of_phases(self._phases)

    def events(self) -> Iterator[Event]:
        for j, unit in enumerate(self._units):
            yield from self._fetches(j, unit)
            yield Event(j, InSlot.COMPUTE, unit, self._phases[j])
            yield from self._stores(j, unit)

    def _fetches(self, j: int, unit: Unit) -> Iterator[Event]:
        for work in unit:
            for read in work.reads:
                if read.exchange is not None:
                    for part in self._parts(read.exchange, work.phase):
                        transfer = ScheduledTransfer(
                            read.tensor, part.exchange, read=read, runs=work.runs, crosses=part.crosses
                        )
                        yield from self._fetch(j, transfer, part, work.phase)

    def _fetch(self, j: int, transfer: ScheduledTransfer, part: Part, phase: str) -> Iterator[Event]:
        available = self._available.get(transfer.tensor, 0)
        if part.crosses:
            sending, receiving = self._passing(transfer.tensor, part, phase)
            start = max(available, self._firsts.get(sending, 0))
            yield from self._crossing(Event(start, InSlot.FETCH_START, transfer, sending, End.SENDER), part, receiving)
            return
        start = min(j, max(available, j - self._prefetch, self._firsts[phase]))
        yield Event(start, InSlot.FETCH_START, transfer, phase)
        yield Event(j, InSlot.FETCH_WAIT, transfer, phase)

    def _stores(self, j: int, unit: Unit) -> Iterator[Event]:
        for write in unit[-1].writes:
            at, phase = j + 1, self._phases[j]
            if write.adds_up and any(part.crosses for hop in write.hops for part in self._staging.parts(hop)):
                at = max(at, self._firsts.get(UPDATE, len(self._units)))
            deadline = max(at, next(iter(self._readers.get(write.tensor, {})), len(self._units)))
            for hop, exchange in enumerate(write.hops):
                end = min(at + self._prefetch, deadline, len(self._units) if write.adds_up else self._ends[j])
                runs = 1 if write.adds_up else unit[-1].runs
                transfer = ScheduledTransfer(write.tensor, exchange, write=write, hop=hop, runs=runs)
                parts = [*self._parts(exchange, UPDATE if write.adds_up else phase)]
                yield from self._hop(transfer, parts, (at, end), phase)
                at = end
                if len(parts) == 1 and parts[0].crosses:
                    phase = self._receiving(write.tensor, parts[0], phase)
            self._available[write.tensor], self._stored_in[write.tensor] = at, phase

    def _hop(
        self, hop: ScheduledTransfer, parts: Iterable[Part], slots: tuple[int, int], phase: str
    ) -> Iterator[Event]:
        """Yield the start and end of a hop at these slots."""
        turns = InSlot(2 * hop.hop), InSlot(2 * hop.hop + 1)
        for part in parts:
            transfer = replace(hop, exchange=part.exchange, crosses=part.crosses)
            if part.crosses:
                start = Event(slots[0], turns[0], transfer, phase, End.SENDER)
                yield from self._crossing(start, part, self._receiving(hop.tensor, part, phase))
                continue
            for slot, turn in zip(slots, turns, strict=True):
                yield Event(slot, turn, transfer, self._phase_at(slot) if _adds_up(hop) else phase)

    def _parts(self, exchange: Exchange, phase: str) -> Iterable[Part]:
        """Return the parts of an exchange by receiving stage if it happens for every micro-batch."""
        return self._staging.parts(exchange) if is_repeated(phase) else (Part(exchange),)

    def _crossing(self, start: Event, part: Part, phase: str) -> Iterator[Event]:
        """Yield the events of a part's sender and of its receiver, which receives before `phase`."""
        assert part.receiver is not None
        first, sent = self._firsts.get(phase, 0), (start.slot, int(start.turn))
        yield start
        for turn in (InSlot.ARRIVAL_START, InSlot.ARRIVAL_WAIT):
            yield Event(first, turn, start.what, phase, End.RECEIVER, sent=sent)
        yield Event(0, InSlot(start.turn + 1), start.what, start.phase, End.SENDER, to=(part.receiver, phase))

    def _passing(self, tensor: str, part: Part, phase: str) -> tuple[str, str]:
        """Return the phases in which a stage sends what another reads in `phase`, and in which the other receives it.

        If later stages read results of the forward pass in the backward pass, they receive them in the forward pass.
        """
        produced_in = self._stored_in.get(tensor, phase)
        chunks = chunk_of(produced_in), chunk_of(phase)
        ahead = (chunks[0], part.sender or 0) < (chunks[1], part.receiver or 0)
        kind = FORWARD if kind_of(produced_in) == FORWARD and ahead else kind_of(phase)
        return produced_in if kind_of(produced_in) == kind else of_chunk(kind, chunks[0]), of_chunk(kind, chunks[1])

    def _receiving(self, tensor: str, part: Part, phase: str) -> str:
        """Return the phase in which a stage receives a result: that of its chunk that first reads it."""
        readers = self._readers.get(tensor, {}).items()
        phases = (self._phases[j] for j, stages in readers if part.receiver in stages)
        first = next(filter(is_repeated, phases), phase)
        return of_chunk(kind_of(phase), chunk_of(first))

    def _phase_at(self, slot: int) -> str:
        return self._phases[slot] if slot < len(self._units) else UPDATE


def _ends_of_phases(phases: Sequence[str]) -> list[int]:
    """Return, per unit, the slot after the last unit of its phase."""
    ends = [len(phases)] * len(phases)
    for j in reversed(range(len(phases) - 1)):
        ends[j] = ends[j + 1] if phases[j] == phases[j + 1] else j + 1
    return ends


def _adds_up(transfer: ScheduledTransfer) -> bool:
    return transfer.write is not None and transfer.write.adds_up


def _readers(units: Sequence[Unit]) -> Mapping[str, Mapping[int, frozenset[int | None]]]:
    """Return the units that read each tensor, in order, each with the groups of the first step that compute it."""
    readers: dict[str, dict[int, frozenset[int | None]]] = {}
    for j, unit in enumerate(units):
        stages = frozenset(group_of(choice) for choice in unit[-1].strategy[:1])
        for work in unit:
            for read in work.reads:
                readers.setdefault(read.tensor, {})[j] = stages
    return readers
