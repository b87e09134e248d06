"""Plan the buffers of a program and their lifetimes: everything about memory that does not depend on the worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import ITEM_BYTES, holds_samples
from planner.layout import Collective, Exchange, Region, computing, owned_by_all
from planner.plans.plan import Plan
from planner.plans.records import ACCUMULATION, is_repeated
from planner.plans.traffic import NodeTraffic, Read, Traffic, Write
from planner.program.buffers import BufferSpecs, Cut, Placed
from planner.program.in_order import PERSISTENT
from planner.program.pipeline import Crossing, Keeping, Order, Schedule, orders
from planner.program.schedule import (
    End,
    Event,
    InSlot,
    ScheduledTransfer,
    StagesOfWorkers,
    Unit,
    add_in_place,
    compute_units,
    in_common_order,
    is_direct,
    schedule as events_of,
)
from planner.program.tasks import Phase

WAITS = (InSlot.HOP_1_WAIT, InSlot.HOP_2_WAIT, InSlot.FETCH_WAIT, InSlot.ARRIVAL_WAIT)
TASKS_TO_START = 2  # a Send and a Receive


@dataclass(frozen=True, slots=True, eq=False)
class TransferBuffers:
    """The buffers of one transfer, and its pieces; staging is None if no worker sends (receives) anything.

    `sources` are the buffers that are sent from, and those of earlier fetches that a worker copies from.
    """

    sources: tuple[int, ...]
    target: int
    outgoing: int | None
    incoming: int | None
    cut: Cut
    collective: Collective | None

    @property
    def staging(self) -> list[int]:
        """The staging buffers of outgoing and incoming data that exist."""
        return [number for number in (self.outgoing, self.incoming) if number is not None]


class BufferPlan:
    """Numbers every buffer and records its uses in the common order, of which every worker runs its part.

    `stored` maps a tensor to the buffer that holds it, `computed` to the buffer it is computed into. `transfers`
    numbers the transfers in the order in which they start; `end` is the last task position. `schedule` is the order in
    which each stage, or all workers together, run micro-batches.
    """

    def __init__(self, plan: Plan, prefetch: int, traffic: Traffic, schedule: Schedule) -> None:
        self.plan = plan
        stages = tuple(worker * len(schedule) // plan.workers for worker in range(plan.workers))
        self._staging = StagesOfWorkers(stages, traffic.phases.order)
        self.graph = plan.graph
        kept = frozenset([*self.graph.updates.values(), *self.graph.metrics.values(), *self.graph.accumulated])
        self.units = compute_units(self.graph, add_in_place(self.graph, traffic.work), kept)
        self.events = events_of(self.units, prefetch, self._staging)
        self.specs = BufferSpecs()
        self.stored: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.ends: dict[ScheduledTransfer, TransferBuffers] = {}
        self._cuts: dict[Exchange, Cut] = {}
        self._fetched: dict[Read, int] = {}
        self._shares: dict[Write, int] = {}
        self._name_persistent()
        self._name_results()
        for event in self.events:
            if event.end is End.RECEIVER:
                continue  # its sender starts it, too
            if isinstance(event.what, ScheduledTransfer) and event.what not in self.ends:
                self._name_transfer(event.what)
        self._carry_updates()
        self.transfers = {transfer: number for number, transfer in enumerate(self.ends)}
        self.phases = self._use_in_order()
        self.end = max(self.phases[-1].stop - 1, 0)
        self._orders = orders(schedule, self._crossings()) if self.graph.micro_batches > 1 else ()
        self._keepings = self._keep_for_micro_batches() if self._orders else ()
        self._overwrite_in_place()

    @property
    def stage_of(self) -> tuple[int, ...]:
        """The stage of every worker: [worker]."""
        return self._staging.stage_of

    def item_bytes(self, tensor: str) -> int:
        """Return the bytes of an element of a tensor."""
        return ITEM_BYTES[self.graph.tensors[tensor].dtype]

    def taking_part(self, event: Event) -> tuple[bool, ...]:
        """Return True for each worker that has anything to do in an event: [worker]."""
        if not isinstance(event.what, ScheduledTransfer):
            return computing(event.what[-1].strategy, self.plan.ways)
        everybody = self.ends[event.what].cut
        if event.end is End.BOTH:
            return everybody.taking_part
        return everybody.sending if event.end is End.SENDER else everybody.receiving

    def order_of(self, worker: int) -> Order:
        """Return the order in which a worker runs its phases; empty if all run once."""
        return self._orders[self.stage_of[worker]] if self._orders else ()

    def place(self, worker: int) -> Placed:
        """Return a worker's buffers with their offsets, and its arena's size in bytes."""
        own = self._positions(worker)
        keeping = self._keepings[self.stage_of[worker]] if self._keepings else None
        return self.specs.place(worker, own, self.end if own is None else own[-1], keeping)

    def _crossings(self) -> Iterator[Crossing]:
        """Yield the transfers between stages that happen for every micro-batch."""
        for event in self.events:
            if event.to is not None and isinstance(event.what, ScheduledTransfer):
                sender = self.stage_of[self.taking_part(event).index(True)]
                yield Crossing(sender, event.phase, *event.to, event.part, event.what.tensor)

    def _positions(self, worker: int) -> tuple[int, ...] | None:
        """Return the worker's position of each task in the common order, -1 if it skips it; None if it runs all tasks.

        The last position counts for every worker.
        """
        if self._all_take_part:
            return None
        own, count = list[int](), 0
        for event in self.events:
            takes_part, tasks = self.taking_part(event)[worker], tasks_of(event)
            own += range(count, count + tasks) if takes_part else (-1,) * tasks
            count += tasks * takes_part
        return (*own[:-1], max(count - 1, 0))

    def phases_of(self, worker: int) -> tuple[Phase, ...]:
        """Return the phases in a worker's positions."""
        if self._all_take_part:
            return self.phases
        takes_part = [self.taking_part(event)[worker] for event in self.events for _ in range(tasks_of(event))]
        before = [0, *accumulate(takes_part)]
        return tuple(
            Phase(
                phase.name,
                before[phase.start],
                before[phase.stop],
                frozenset(before[position] for position in phase.closing if takes_part[position]),
            )
            for phase in self.phases
        )

    @cached_property
    def _all_take_part(self) -> bool:
        return all(map(all, {self.taking_part(event) for event in self.events}))

    def owned(self, tensor: str) -> tuple[Region, ...]:
        """Return the region that each worker holds of a tensor."""
        return owned_by_all(self.graph.tensors[tensor].shape, self.plan.layouts[tensor], self.plan.ways)

    def read_from(self, read: Read) -> int:
        """Return the buffer from which a node reads."""
        if read.same_as is not None:
            return self._fetched[read.same_as]
        return self.stored[read.tensor] if read.exchange is None else self._fetched[read]

    def written_to(self, work: NodeTraffic) -> list[int]:
        """Return the buffers into which a node computes its outputs."""
        if work.accumulates is not None:
            return [self.computed[self._sum_output[work.accumulates]]]
        return [self.computed[write.tensor] for write in work.writes]

    @cached_property
    def adds_up(self) -> frozenset[int]:
        """Buffers in which results accumulate over the micro-batches."""
        return frozenset(self.computed[name] for name in self.graph.accumulated if name in self.computed)

    @cached_property
    def first_summand(self) -> dict[str, str]:
        """For each sum, the node whose partial result it starts with; later ones are added to it."""
        first: dict[str, str] = {}
        for unit in self.units:
            if unit[-1].accumulates is not None:
                first.setdefault(unit[-1].accumulates, unit[-1].node.name)
        return first

    @cached_property
    def _sum_output(self) -> dict[str, str]:
        return {node.name: node.outputs[0] for node in self.graph.nodes}

    # --- names

    def _name_persistent(self) -> None:
        for tensor in self.graph.tensors.values():
            if tensor.init is not None:
                regions = self.owned(tensor.name)
                number = self.specs.add_regions(tensor.name, PERSISTENT, tensor.dtype, regions)
                self.stored[tensor.name] = number
                if self.graph.micro_batches > 1 and holds_samples(tensor):
                    self.specs.items[number].slots = self.graph.micro_batches

    def _name_results(self) -> None:
        """Give every result a buffer where it is computed and, if it moves, one where it is stored."""
        last_reads = self._last_reads()
        replaced = {new: old for old, new in self.graph.updates.items()}
        for j, unit in enumerate(self.units):
            for write in unit[-1].writes:
                dtype = self.graph.tensors[write.tensor].dtype
                name, old = write.tensor, replaced.get(write.tensor)
                if old is not None and last_reads.get(old, -1) <= j and unit[-1].accumulates is None:
                    self.stored[name] = self.stored[old]
                else:
                    self.stored[name] = self.specs.add_regions(name, "tensor", dtype, self.owned(name))
                self.computed[name] = self.stored[name]
                if write.hops:
                    regions = write.production.regions
                    self.computed[name] = self.specs.add_regions(f"{name} as computed", "partial", dtype, regions)

    def _last_reads(self) -> dict[str, int]:
        """Return, per tensor, the earliest unit whose results may overwrite it.

        An element-wise node may overwrite its own operands; a fetch reads its source before its unit runs.
        """
        last: dict[str, int] = {}
        for j, unit in enumerate(self.units):
            for work in unit:
                for read in work.reads:
                    alone = len(unit) == 1 and work.signature.description.is_elementwise
                    free = j if alone or not is_direct(read) else j + 1
                    last[read.tensor] = max(last.get(read.tensor, -1), free)
        return last

    def _name_transfer(self, transfer: ScheduledTransfer) -> None:
        tensor = self.graph.tensors[transfer.tensor]
        if transfer.read is not None:
            copied = tuple(map(self._name_fetch, transfer.read.copies))
            self._add_ends(transfer, (self.stored[tensor.name], *copied), self._name_fetch(transfer.read))
        elif transfer.write is not None:
            write = transfer.write
            source = self.computed[tensor.name] if transfer.hop == 0 else self._shares[write]
            target = self.stored[tensor.name]
            if transfer.hop + 1 < len(write.hops):
                if write not in self._shares:
                    regions = write.hops[transfer.hop].targets
                    number = self.specs.add_regions(f"{tensor.name} reduced", "reduce", tensor.dtype, regions)
                    self._shares[write] = number
                target = self._shares[write]
            self._add_ends(transfer, (source,), target)

    def _name_fetch(self, read: Read) -> int:
        """Return the buffer that a read fetches into."""
        if read not in self._fetched and read.exchange is not None:
            name, dtype = f"{read.tensor} for {read.node}", self.graph.tensors[read.tensor].dtype
            self._fetched[read] = self.specs.add_regions(name, "fetch", dtype, read.exchange.targets)
        return self._fetched[read]

    def _add_ends(self, transfer: ScheduledTransfer, sources: tuple[int, ...], target: int) -> None:
        if transfer.exchange not in self._cuts:
            self._cuts[transfer.exchange] = Cut(transfer.exchange)
        pieces = self._cuts[transfer.exchange]
        item = self.item_bytes(transfer.tensor)

        def staging(name: str, elements: NDArray[np.int64]) -> int | None:
            if not elements.any():
                return None
            shapes = tuple((count,) for count in (elements * item).tolist())
            return self.specs.add(f"{transfer.tensor} {name}", "staging", "uint8", shapes)

        outgoing = staging("going out", pieces.moved.sum(axis=1))
        incoming = staging("coming in", pieces.moved.sum(axis=0))
        self.ends[transfer] = TransferBuffers(sources, target, outgoing, incoming, pieces, transfer.collective)

    def _carry_updates(self) -> None:
        """Copy an updated tensor over its old value at the end of the phase, if it could not replace it in place."""
        ends = {unit[-1].phase: j for j, unit in enumerate(self.units, start=1)}
        phase_of = {write.tensor: unit[-1].phase for unit in self.units for write in unit[-1].writes}
        for old, new in self.graph.updates.items():
            if new in self.computed and self.stored[new] != self.stored[old]:
                here = self.owned(new)
                everywhere = frozenset(range(len(self.plan.ways)))
                runs = self.graph.micro_batches if is_repeated(phase_of[new]) else 1
                transfer = ScheduledTransfer(new, Exchange(self.plan.ways, here, here, everywhere), runs=runs)
                self._add_ends(transfer, (self.stored[new],), self.stored[old])
                phase = phase_of[new]
                for turn in (InSlot.FETCH_START, InSlot.FETCH_WAIT):
                    self.events.append(Event(ends[phase], turn, transfer, phase))
        self.events = in_common_order(self.events, self._staging.order)

    # --- lifetimes

    def _use_in_order(self) -> tuple[Phase, ...]:
        """Record the buffers used at each task position; return the phases."""
        position, phases = 0, list[Phase]()
        for phase, events in groupby(self.events, key=attrgetter("part")):
            start, closing = position, set[int]()
            for event in events:
                tasks = range(position, position + tasks_of(event))
                self._use(position, self._used_by(event))
                closing.update(tasks if event.closing else ())
                position = tasks.stop
            phases.append(Phase(phase, start, position, frozenset(closing)))
        metrics = [self.stored[name] for name in self.graph.metrics.values() if name in self.stored]
        self._use(max(position - 1, 0), metrics)
        return tuple(phases)

    def _used_by(self, event: Event) -> list[int]:
        if not isinstance(event.what, ScheduledTransfer):
            return [*self._inputs(event.what), *self.written_to(event.what[-1])]
        ends = self.ends[event.what]
        if event.turn in WAITS:
            return [*ends.sources, ends.target, *ends.staging]
        return [ends.sources[0], *ends.staging]

    def _keep_for_micro_batches(self) -> tuple[Keeping, ...]:
        """Give every micro-batch its own slots, and keep shared buffers for as long as more micro-batches follow.

        Return the slots that each stage keeps.
        """
        every = [phase for phase in self.phases if is_repeated(phase.name)]
        first, last = every[0].start, every[-1].stop - 1
        passing = {
            number
            for event in self.events
            if is_repeated(event.phase) and not event.closing
            for number in self._used_by(event)
        }
        for number in passing:
            item = self.specs.items[number]
            if item.kind == PERSISTENT:
                continue
            if number in self.adds_up or item.uses[0] < first:
                item.kept = first, last
            else:
                item.slots = 1
        in_between = () if self.plan.schedule == ACCUMULATION else pairwise(every)
        for phase, following in in_between:  # in transit between phases, it coexists with other micro-batches
            for item in self.specs.items:
                if not item.slots and item.uses and item.uses[0] < phase.stop <= item.uses[-1] < following.stop:
                    item.kept = item.kept or (first, last)
        return tuple(Keeping(self.phases, order, (first, last)) for order in self._orders)

    def _use(self, position: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.specs.use(number, position)

    def _inputs(self, unit: Unit, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the buffers that a unit's nodes from `start` to `stop` read, except results within the unit."""
        inner = {write.tensor for work in unit[:-1] for write in work.writes}
        reads = (read for work in unit[start:stop] for read in work.reads if read.tensor not in inner)
        return [self.read_from(read) for read in reads]

    def _overwrite_in_place(self) -> None:
        """Let element-wise units compute into the bytes of an operand that is not read again.

        In a chain only operands of the first node qualify: the others are read after the result's bytes are written.
        """
        for unit in self.units:
            if unit[-1].accumulates is None and unit[-1].signature.description.is_elementwise:
                free = [n for n in self._inputs(unit, stop=1) if n not in self._inputs(unit, start=1)]
                for number in self.written_to(unit[-1]):
                    dying = next((n for n in free if self.specs.may_overwrite(number, n)), None)
                    if dying is not None:
                        free = [n for n in free if n != dying]
                        self.specs.overwrite(number, dying)


def tasks_of(event: Event) -> int:
    """Return the number of tasks of an event."""
    starts = isinstance(event.what, ScheduledTransfer) and event.turn not in WAITS
    return TASKS_TO_START if starts else 1
