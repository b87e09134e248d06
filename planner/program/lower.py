"""Lowering: from a plan to the program that the simulator prices and the executor runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.graph.ir import ITEM_BYTES
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.plans.traffic import Traffic, Work
from planner.program.calls import CallGeometry, node_work
from planner.program.cut import Pieces, cut, total_elements
from planner.program.drafting import WAITS, Drafting
from planner.program.schedule import Transfer
from planner.program.tasks import (
    Call,
    Compute,
    Fetch,
    Kernel,
    LocalCopy,
    Message,
    Program,
    Reduce,
    Send,
    Task,
    Wait,
    WorkerProgram,
)
from planner.program.units import Unit
from topologies.kernels import Product


def lower(plan: Plan | str | Path, prefetch: int = 1, nodes: Sequence[str] | None = None) -> Program:
    """Return the program of one training iteration of a plan, or of a plan.json, for every worker.

    `prefetch` is how many compute units before its consumer a fetch may start (0: none overlaps). `nodes` restricts
    the program to some of the graph's nodes (for evaluation); persistent buffers lie where they lie in the whole.
    Raises a PlanError for what is no plan, and unless `prefetch` is a whole number from 0.
    """
    plan = plan_of(plan)
    if type(prefetch) is not int or prefetch < 0:
        raise PlanError(f"prefetch: expected a whole number from 0, found {prefetch!r}")
    wanted = None if nodes is None else frozenset(nodes)
    traffic = Traffic(plan, [node for node in plan.graph.nodes if wanted is None or node.name in wanted])
    drafting = Drafting(plan, prefetch, traffic)
    regions = {name: drafting.owned(name) for name in drafting.stored}
    workers = tuple(_Emitter(drafting, worker).program() for worker in range(plan.workers))
    return Program(plan.ways, workers, drafting.stored, regions, sent_bytes(drafting))


def arena_sizes(plan: Plan, prefetch: int = 1) -> tuple[int, ...]:
    """Return every worker's `arena_bytes` in the plan's program, without writing any task."""
    drafting = Drafting(plan, prefetch, plan.traffic())
    return drafting.drafts.arena_sizes(plan.workers, drafting.end)


def sent_bytes(drafting: Drafting) -> NDArray[np.int64]:
    """Return the k x k matrix of bytes in the pieces of all transfers, from worker (row) to worker (column)."""
    total = np.zeros((drafting.plan.workers,) * 2, dtype=np.int64)
    for transfer in drafting.transfers:
        item = ITEM_BYTES[drafting.graph.tensors[transfer.tensor].dtype]
        for worker, share in enumerate(cut(transfer.exchange)):
            for peer, pieces in share.sends:
                total[worker, peer] += total_elements(pieces) * item
    return total


class _Emitter:
    """Writes one worker's tasks."""

    def __init__(self, drafting: Drafting, worker: int) -> None:
        self.drafting = drafting
        self.worker = worker
        self.buffers, self.arena_bytes = drafting.drafts.place(worker, drafting.end)

    def program(self) -> WorkerProgram:
        """Write all tasks in the common order."""
        tasks = tuple(task for event in self.drafting.events for task in self._tasks(event.what, event.phase in WAITS))
        return WorkerProgram(self.worker, tasks, self.buffers, self.arena_bytes)

    def _tasks(self, what: Transfer | Unit, is_wait: bool) -> Iterator[Task]:
        if not isinstance(what, Transfer):
            yield self._compute(what)
        elif is_wait:
            yield Wait(self.drafting.transfers[what])
        else:
            yield from self._start(what)

    def _start(self, transfer: Transfer) -> Iterator[Task]:
        ends, number = self.drafting.ends[transfer], self.drafting.transfers[transfer]
        share = cut(transfer.exchange)[self.worker]
        item = ITEM_BYTES[self.drafting.graph.tensors[transfer.tensor].dtype]
        yield Send(number, ends.outgoing, _messages(share.sends, ends.source, item))
        copies = zip((ends.source, *ends.copied), (share.own, *share.copied), strict=True)
        local = tuple(LocalCopy(buffer, pieces) for buffer, pieces in copies if pieces)
        received = _messages(share.receives, ends.target, item)
        reducer = transfer.exchange.reducer
        if reducer is None:
            yield Fetch(number, ends.target, ends.incoming, received, local)
        else:
            yield Reduce(number, ends.target, ends.incoming, received, local, reducer)

    def _compute(self, unit: Unit) -> Compute:
        """Write a unit; inside a chain a node's result lies where the last one's goes."""
        inner = {write.tensor for work in unit[:-1] for write in work.writes}
        result = self.drafting.written_to(unit[-1])
        kernels, operations, touched = [], 0.0, 0
        products: list[Product] = []
        for work in unit:
            share = node_work(work.signature, work.strategy, self.drafting.plan.ways, self.worker)
            operations += share.operations
            touched += self._touched(work, share.input_elements, share.output_elements)
            products += share.products
            reads = {
                operand: result[0] if read.tensor in inner else self.drafting.read_from(read)
                for read in work.reads
                for operand in read.operands
            }
            inputs = tuple(reads[operand] for operand in range(len(reads)))
            later = work.accumulates is not None and not self._is_first_summand(work)
            calls = tuple(_call(call, inputs, result, later) for call in share.calls)
            attributes = {**work.node.attrs, "extents": work.signature.extents}
            kernels.append(Kernel(work.node.name, work.node.op, attributes, calls))
        return Compute(tuple(kernels), unit[-1].signature.category, operations, touched, tuple(products))

    def _touched(self, work: Work, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        tensors = self.drafting.graph.tensors
        read = sum(n * ITEM_BYTES[tensors[t].dtype] for n, t in zip(inputs, work.node.inputs, strict=True))
        return read + sum(n * ITEM_BYTES[tensors[t].dtype] for n, t in zip(outputs, work.node.outputs, strict=True))

    def _is_first_summand(self, work: Work) -> bool:
        return self.drafting.first_summand[work.accumulates or ""] == work.node.name


def _messages(shares: Sequence[tuple[int, Pieces]], buffer: int, item: int) -> tuple[Message, ...]:
    """Write messages that lie one after the other in staging."""
    messages, at = [], 0
    for peer, pieces in shares:
        nbytes = total_elements(pieces) * item
        messages.append(Message(peer, buffer, pieces, nbytes, at))
        at += nbytes
    return tuple(messages)


def _call(geometry: CallGeometry, inputs: Sequence[int], outputs: Sequence[int], adds: bool) -> Call:
    return Call(
        tuple(zip(inputs, geometry.inputs, strict=True)),
        tuple(zip(outputs, geometry.outputs, strict=True)),
        geometry.ranges,
        geometry.origins,
        "Sum" if adds else geometry.combine,
    )
