"""Lowering: from a plan to the program that the simulator prices and the executor runs.

Workers are equivalent if their tasks and messages have equal sizes. They are compared by regions and counts, before any
task is written, so only one worker per class needs its tasks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tdl
from planner.errors import PlanError
from planner.graph.ir import Node, Value
from planner.graph.order import KernelClass, kernel_classes
from planner.grouping import numbered_values
from planner.layout import Collective, Region, Signature, Strategy, elements, needed, production
from planner.layout.geometry import split_steps
from planner.layout.region import runs_of_workers
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.plans.records import ACCUMULATION, stages_of
from planner.plans.traffic import NodeTraffic, Traffic
from planner.program.buffer_plan import WAITS, BufferPlan
from planner.program.buffers import ExchangeShare, Pieces
from planner.program.calls import NodeWork, node_work
from planner.program.pipeline import Schedule, accumulation, schedule_of
from planner.program.schedule import End, Event, ScheduledTransfer, Unit
from planner.program.tasks import (
    Compute,
    Kernel,
    LocalCopy,
    Message,
    Phase,
    Program,
    Receive,
    Send,
    SlicedCall,
    Task,
    Wait,
    WorkerProgram,
)
from tensor_partitioner.display import tracked
from topologies.kernels import Product

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """Classes of workers [worker] and of pairs of workers [from, to]: equal numbers mean equivalent.

    Two pairs are equivalent if the same transfers move messages of the same sizes between them; pairs without messages
    have number 0. `apart` is True for pairs with messages in a transfer that is not a collective. `collectives` lists
    the collective transfers, with the bytes of an element.
    """

    workers: Numbers
    pairs: Numbers
    apart: NDArray[np.bool_]
    collectives: tuple[tuple[Collective, int], ...]


def likeness(plan: BufferPlan) -> Likeness:
    """Return the classes of a plan's workers."""
    workers = np.zeros(plan.plan.workers, dtype=np.int64)
    for told in dict.fromkeys(map(tuple, _told_apart(plan))):
        workers = numbered(workers, by_value(told))
    pairs, apart = np.zeros((len(workers),) * 2, dtype=np.int64), np.zeros((len(workers),) * 2, dtype=np.bool_)
    for cut in dict.fromkeys(ends.cut for ends in plan.ends.values()):
        moving = np.nonzero(cut.moved)
        pairs[moving] = pairs.max() + 1 + numbered(pairs[moving], cut.moved[moving])
    for cut in dict.fromkeys(ends.cut for ends in plan.ends.values() if ends.collective is None):
        apart |= cut.moved > 0
    collectives = dict.fromkeys(
        (ends.collective, plan.item_bytes(transfer.tensor)) for transfer, ends in plan.ends.items() if ends.collective
    )
    return Likeness(workers, pairs, apart, tuple(collectives))


def numbered(*columns: Numbers) -> Numbers:
    """Number rows of columns side by side from 0: equal rows have equal numbers."""
    numbers = columns[0]
    for column in columns[1:]:
        _, values = np.unique(column, return_inverse=True)
        _, numbers = np.unique(numbers * (1 + values.max(initial=0)) + values, return_inverse=True)
    return numbers


def by_value(values: Sequence[Hashable]) -> Numbers:
    """Number values in the order in which they first occur."""
    return np.array(numbered_values(values)[0], dtype=np.int64)


def _told_apart(plan: BufferPlan) -> Iterable[Sequence[Hashable]]:
    """Yield everything that may differ between workers, as one value per worker."""
    yield plan.stage_of
    for event in plan.events:
        yield plan.taking_part(event)
    for item in plan.specs.items:
        yield item.shapes
    for cut in dict.fromkeys(ends.cut for ends in plan.ends.values()):
        yield from cut.copied.tolist()
    works = {(work.signature, work.strategy): work for unit in plan.units for work in unit}
    for work in works.values():
        yield from _of_node(plan, work)


def _of_node(plan: BufferPlan, work: NodeTraffic) -> Iterable[Sequence[Hashable]]:
    """Yield each worker's iteration counts, and its elements of each operand and output."""
    signature, strategy, ways = work.signature, work.strategy, plan.plan.ways
    for name, steps in split_steps(strategy).items():
        runs = runs_of_workers(signature.extents[name], steps, ways)
        yield [tuple(stop - start for start, stop in of_worker) for of_worker in runs]
    for operand in range(len(signature.shapes)):
        yield [*map(elements, needed(signature, operand, strategy, ways))]
    for output in range(len(signature.outputs)):
        yield [*map(elements, production(signature, output, strategy, ways).regions)]


Mail = tuple[tuple[Message, ...], tuple[Message, ...]]
"""The messages that a worker sends, and those it receives."""


def lower(plan: Plan | str | Path, prefetch: int = 1, nodes: Sequence[str] | None = None) -> Program:
    """Return the program of one training iteration of a plan, or of a plan.json, for every worker.

    Arguments and errors are those of `Lowering`. Raises PlanError if `plan` is not a plan.

    >>> import planner
    >>> plan = planner.plan(planner.model("mlp-2-16", batch=8), workers=4)
    >>> program = planner.lower(plan)
    >>> len(program.workers), int(program.bytes.sum()) == plan.total_bytes
    (4, True)
    """
    return Lowering(plan_of(plan), prefetch, nodes).program()


def arena_sizes(plan: Plan, prefetch: int = 1) -> tuple[int, ...]:
    """Return every worker's `arena_bytes` in the plan's program, without writing any task: [worker]."""
    buffer_plan = BufferPlan(plan, prefetch, plan.traffic(), schedule_of_plan(plan))
    return tuple(buffer_plan.place(worker)[1] for worker in range(plan.workers))


def schedule_of_plan(plan: Plan) -> Schedule:
    """Return the order of micro-batches of every stage, or a single one for all workers together."""
    if plan.schedule == ACCUMULATION or plan.graph.micro_batches == 1:
        return accumulation(1, plan.graph.micro_batches)
    return schedule_of(plan.schedule, stages_of(plan.ways), plan.graph.micro_batches)


class Lowering:
    """Write the program of one training iteration, for one worker or for all.

    `prefetch` is the number of compute units before its consumer at which a fetch may start (0: no overlap). `nodes`
    restricts the program to some of the graph's nodes (for evaluation, on the first micro-batch); persistent buffers
    have the same offsets as in the whole program. Work common to all workers is done once. Raises PlanError unless
    `prefetch` is a whole number of at least 0, and if the plan's schedule cannot run because its stages need each other
    in both directions.
    """

    def __init__(self, plan: Plan, prefetch: int = 1, nodes: Sequence[str] | None = None) -> None:
        if type(prefetch) is not int or prefetch < 0:
            raise PlanError(f"prefetch: expected a whole number of at least 0, found {prefetch!r}")
        traffic, schedule = plan.traffic(), schedule_of_plan(plan)
        if nodes is not None:
            plan, schedule = replace(plan, schedule=ACCUMULATION), accumulation(1, 1)
            traffic = Traffic(plan, [node for node in plan.graph.nodes if node.name in frozenset(nodes)])
        self._plan = plan
        self._buffer_plan = BufferPlan(plan, prefetch, traffic, schedule)
        self._mail: dict[tuple[int, int], Mail] = {}  # by the identity of a worker's share
        self._shares: dict[tuple[Signature, Strategy, int], NodeWork] = {}

    @property
    def tensors(self) -> Mapping[str, int]:
        """The buffer of every tensor held in memory; see `Program`."""
        return self._buffer_plan.stored

    @cached_property
    def regions(self) -> Mapping[str, tuple[Region, ...]]:
        """The region of every such tensor that each worker holds; see `Program`."""
        return {name: self._buffer_plan.owned(name) for name in self.tensors}

    @cached_property
    def likeness(self) -> Likeness:
        """The classes of equivalent workers."""
        return likeness(self._buffer_plan)

    def program(self, representatives: Sequence[int] | None = None) -> Program:
        """Return the program of all workers, or of `representatives` of all, whose pieces are not `sliced`."""
        chosen = range(self._plan.workers) if representatives is None else representatives
        sliced = representatives is None
        workers = tuple(self.worker(worker, sliced=sliced) for worker in tracked("lowering", chosen))
        sent = self._sent(workers) if sliced else self._plan.bytes
        return Program(self._plan.ways.factors, workers, self.tensors, self.regions, sent)

    def _sent(self, workers: Sequence[WorkerProgram]) -> NDArray[np.int64]:
        """Return the matrix of bytes in all messages, from worker (row) to worker (column)."""
        total = np.zeros((len(workers),) * 2, dtype=np.int64)
        runs = [transfer.runs for transfer in self._buffer_plan.ends]
        for row, worker in zip(total, workers, strict=True):
            for task in worker.tasks:
                if isinstance(task, Send):
                    for message in task.messages:
                        row[message.peer] += message.nbytes * runs[task.transfer]
        return total

    def worker(self, worker: int, *, sliced: bool = True) -> WorkerProgram:
        """Return one worker's program: its tasks, in the common order.

        Unless `sliced`, everything that moves between two arrays is one piece without slices; such a program is priced
        by its bytes and not run.
        """
        tasks: list[Task] = []
        for event in self._buffer_plan.events:
            if not self._buffer_plan.taking_part(event)[worker]:
                continue
            if not isinstance(event.what, ScheduledTransfer):
                tasks.append(self._compute(event.what, worker))
            elif event.turn in WAITS:
                tasks.append(Wait(self._buffer_plan.transfers[event.what]))
            else:
                tasks += self._start(event, worker, sliced=sliced)
        transfers = len(self._buffer_plan.transfers)
        return WorkerProgram(worker, tuple(tasks), *self._buffer_plan.place(worker), *self._order(worker), transfers)

    def _order(self, worker: int) -> tuple[tuple[Phase, ...], tuple[tuple[int, int], ...]]:
        """Return a worker's phases, and its steps as numbers of a phase and a micro-batch.

        Empty if everything runs once.
        """
        if self._plan.graph.micro_batches == 1:
            return (), ()
        phases = self._buffer_plan.phases_of(worker)
        numbers = {phase.name: number for number, phase in enumerate(phases)}
        order = self._buffer_plan.order_of(worker)
        return phases, tuple((numbers[phase], micro_batch) for phase, micro_batch in order if phase in numbers)

    def _start(self, event: Event, worker: int, *, sliced: bool) -> Iterator[Task]:
        transfer = event.what
        assert isinstance(transfer, ScheduledTransfer)
        ends, number = self._buffer_plan.ends[transfer], self._buffer_plan.transfers[transfer]
        share = ends.cut.share(worker, sliced=sliced)
        sent, received = self._messages(share, self._buffer_plan.item_bytes(transfer.tensor))
        yield Send(number, ends.sources[0], ends.outgoing, sent, ends.collective, event.end is End.SENDER)
        copies = zip(ends.sources, share.local, strict=True)
        local = tuple(LocalCopy(buffer, pieces) for buffer, pieces in copies if pieces)
        reducer = transfer.exchange.reducer
        yield Receive(number, ends.target, ends.incoming, received, local, reducer, ends.collective)

    def _messages(self, share: ExchangeShare, item_bytes: int) -> Mail:
        key = (id(share), item_bytes)  # a Cut keeps its shares alive, so their ids stay valid
        if key not in self._mail:
            self._mail[key] = _messages(share.sends, item_bytes), _messages(share.receives, item_bytes)
        return self._mail[key]

    def _compute(self, unit: Unit, worker: int) -> Compute:
        kernels, operations, touched = [], 0.0, 0
        products: list[Product] = []
        for step in self._node_steps[unit]:
            work = step.work
            share = self._node_work(work.signature, work.strategy, worker)
            operations += share.operations
            touched += sum(map(int.__mul__, share.input_elements, step.input_item_bytes))
            touched += sum(map(int.__mul__, share.output_elements, step.output_item_bytes))
            products += share.products
            calls = tuple(map(step.call, share.calls))
            kernels.append(Kernel(work.node.name, work.node.op, step.attributes, calls, step.accumulates, step.rows))
        last = unit[-1]
        kernel_class = self._classes[last.node.name]
        return Compute(tuple(kernels), last.signature.category, operations, touched, tuple(products), kernel_class)

    def _node_work(self, signature: Signature, strategy: Strategy, worker: int) -> NodeWork:
        """Return a worker's calls of a node; equivalent nodes share them."""
        key = signature, strategy, worker
        if key not in self._shares:
            self._shares[key] = node_work(signature, strategy, self._plan.ways, worker)
        return self._shares[key]

    @cached_property
    def _classes(self) -> Mapping[str, KernelClass]:
        return kernel_classes(self._plan.graph)

    @cached_property
    def _node_steps(self) -> Mapping[Unit, tuple[_Step, ...]]:
        return {unit: tuple(self._unit_steps(unit)) for unit in self._buffer_plan.units}

    def _unit_steps(self, unit: Unit) -> Iterator[_Step]:
        """Yield the steps of a unit; in a chain, intermediate results lie where the last node's result goes."""
        inner = {write.tensor for work in unit[:-1] for write in work.writes}
        result, first_summand = tuple(self._buffer_plan.written_to(unit[-1])), self._buffer_plan.first_summand
        for work in unit:
            reads = {
                operand: result[0] if read.tensor in inner else self._buffer_plan.read_from(read)
                for read in work.reads
                for operand in read.operands
            }
            yield _Step(
                work=work,
                attributes={**work.node.attrs, "extents": work.signature.extents},
                inputs=tuple(reads[operand] for operand in range(len(reads))),
                outputs=result,
                adds=work.accumulates is not None and first_summand[work.accumulates] != work.node.name,
                accumulates=any(map(self._buffer_plan.adds_up.__contains__, result)),
                rows=self._rows(work.node),
                input_item_bytes=tuple(map(self._buffer_plan.item_bytes, work.node.inputs)),
                output_item_bytes=tuple(map(self._buffer_plan.item_bytes, work.node.outputs)),
            )

    def _rows(self, node: Node) -> int:
        """Return by how many rows a node's random numbers advance from micro-batch to micro-batch."""
        graph = self._plan.graph
        draws = graph.micro_batches > 1 and "row" in tdl.catalog[node.op].random_keys
        return graph.tensors[node.outputs[0]].shape[0] if draws else 0


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A node's place in its unit, the same on every worker: its buffers, and whether it adds to their content.

    `accumulates` and `rows` are as in Kernel.
    """

    work: NodeTraffic
    attributes: Mapping[str, Value]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    adds: bool
    accumulates: bool
    rows: int
    input_item_bytes: tuple[int, ...]
    output_item_bytes: tuple[int, ...]

    def call(self, call: SlicedCall) -> SlicedCall:
        """Return a call with the numbers of operands and outputs replaced by their buffers."""
        inputs = tuple((self.inputs[number], slices) for number, slices in call.inputs)
        outputs = tuple((self.outputs[number], slices) for number, slices in call.outputs)
        return replace(call, inputs=inputs, outputs=outputs, combine="Sum" if self.adds else call.combine)


def _messages(shares: Sequence[tuple[int, Pieces]], item_bytes: int) -> tuple[Message, ...]:
    """Return messages that lie one after the other in staging."""
    messages, at = [], 0
    for peer, pieces in shares:
        nbytes = item_bytes * sum(piece.elements for piece in pieces)
        messages.append(Message(peer, pieces, nbytes, at))
        at += nbytes
    return tuple(messages)
