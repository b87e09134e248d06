"""One rank training a plan: its arena, inputs, weights and steps, and evaluation over the same arena."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.arena import Arena, Memory
from executor.backend import asnumpy
from executor.cluster import Cluster, HostArray
from executor.data import DataSet, HeldOut, data_tensors
from executor.transport import TRANSPORTS, Transport
from executor.values import Tile, fill, first_stream
from executor.worker import Worker
from planner.graph.ir import Graph
from planner.layout import Region
from planner.plans.plan import Plan
from planner.program.lower import lower
from planner.program.tasks import Program, WorkerProgram


@dataclass(frozen=True, slots=True)
class RankProgram:
    """One rank's tasks and buffers, and where stored tensors lie on all ranks."""

    own: WorkerProgram
    tensors: Mapping[str, int]
    regions: Mapping[str, Sequence[Region]]

    @classmethod
    def of(cls, program: Program, rank: int) -> RankProgram:
        """Return a rank's part of a program."""
        return cls(program.workers[rank], program.tensors, program.regions)


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank needs of a plan lowered for training and, where wanted, for evaluation, in one arena."""

    plan: Plan
    training: RankProgram
    evaluation: RankProgram | None
    arena_bytes: int


@dataclass(frozen=True, slots=True)
class Programs:
    """A plan lowered for training and, where wanted, for evaluation; both lay weights at the same offsets."""

    plan: Plan
    training: Program
    evaluation: Program | None = None

    def arena_bytes(self, worker: int) -> int:
        """Return the size of a worker's arena, which serves both programs."""
        both = [program for program in (self.training, self.evaluation) if program is not None]
        return max(program.workers[worker].arena_bytes for program in both)

    def part(self, rank: int) -> Part:
        """Return what one rank needs."""
        evaluation = None if self.evaluation is None else RankProgram.of(self.evaluation, rank)
        return Part(self.plan, RankProgram.of(self.training, rank), evaluation, self.arena_bytes(rank))


def lowered(plan: Plan, prefetch: int, evaluate: bool) -> Programs:
    """Lower a plan; evaluation runs just the nodes that the logits need."""
    training = lower(plan, prefetch=prefetch)
    if not evaluate:
        return Programs(plan, training)
    nodes = needed_nodes(plan.graph, plan.graph.metrics["logits"])
    return Programs(plan, training, lower(plan, prefetch=prefetch, nodes=nodes))


def needed_nodes(graph: Graph, tensor: str) -> tuple[str, ...]:
    """Return the nodes that a tensor depends on, in the graph's order."""
    wanted, found = {tensor}, []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            found.append(node.name)
    return tuple(reversed(found))


class Trainer:
    """One rank training a plan.

    `xp` is the array module. Weights and states are made from the plan's seed, so any number of workers starts from
    the same values.
    """

    def __init__(self, part: Part, cluster: Cluster, xp: Any, transport: str) -> None:
        self.part = part
        self.graph = part.plan.graph
        self.cluster = cluster
        self.xp = xp
        self._make_transport = TRANSPORTS[transport]
        self.arena = Arena(xp, part.arena_bytes)
        self.worker = self._worker(part.training)
        self.reset()

    def reset(self) -> None:
        """Give weights, states and constant inputs their first values."""
        for name, tensor in self.graph.tensors.items():
            if tensor.init is not None and tensor.init.kind != "data":
                number = first_stream(tensor, self.part.plan.seed)
                fill(self.xp, self.view(name), self._tile(self.part.training, name), number)

    def _worker(self, program: RankProgram) -> Worker:
        def transport(memory: Memory) -> Transport:
            return self._make_transport(memory, self.cluster.comm, self.cluster.wait)

        return Worker(program.own, self.arena, transport)

    def _tile(self, program: RankProgram, name: str) -> Tile:
        return Tile(self.graph.tensors[name], program.regions[name][self.cluster.rank])

    def view(self, name: str) -> Any:
        """Return the local array of a stored tensor."""
        return self.worker.memory.views[self.part.training.tensors[name]]

    def load(self, data: DataSet, step: int) -> None:
        """Put the inputs of a step into their buffers."""
        for tensor in data_tensors(self.graph):
            data.fill(self.xp, self.view(tensor.name), self._tile(self.part.training, tensor.name), step)

    @property
    def waits(self) -> tuple[tuple[float, float], ...]:
        """From when to when the last step waited for messages."""
        return tuple(self.worker.transport.waits)

    def run(self, settle: bool = False) -> tuple[list[float], NDArray[np.int64]]:
        """Run one step on what was loaded; return its moments (see Worker.run) and the bytes sent to every rank."""
        sent = self.worker.transport.sent_bytes
        sent.fill(0)
        self.worker.transport.waits.clear()
        moments = self.worker.run(settle)
        return moments, sent.copy()

    def run_keeping(self, names: Iterable[str]) -> dict[str, HostArray]:
        """Run one step on what was loaded; return local arrays of stored tensors as they were before their last use."""
        kept: dict[str, HostArray] = {}

        def keep(name: str) -> None:
            kept[name] = self.host_copy(name)

        buffers, numbers = self.part.training.own.buffers, self.part.training.tensors
        self.worker.run_looking([(buffers[numbers[name]].last, partial(keep, name)) for name in names])
        return kept

    def host_copy(self, name: str) -> HostArray:
        """Return a copy of a stored tensor's local array."""
        return np.array(asnumpy(self.view(name)))

    def whole(self, name: str, tile: HostArray | None = None) -> HostArray | None:
        """Put a stored tensor, or the tiles that ranks kept of it, together on rank 0 (collective); None elsewhere."""
        tile = asnumpy(self.view(name)) if tile is None else tile
        return self.cluster.assemble(self.graph.tensors[name], self.part.training.regions[name], tile)

    def evaluate(self, held_out: HeldOut) -> float | None:
        """Return, on rank 0, the share of held-out images that are classified right (collective); None elsewhere.

        Batch normalization uses the statistics of the batch that is evaluated.
        """
        program = self.part.evaluation
        if program is None:
            raise ValueError("expected a program for evaluation, found none")
        worker = self._worker(program)
        logits = self.graph.metrics["logits"]
        view = worker.memory.views[program.tensors[logits]]
        right = 0
        for step in range(held_out.steps_per_epoch):
            self.load(held_out, step)
            worker.run()
            found = self.cluster.assemble(self.graph.tensors[logits], program.regions[logits], asnumpy(view))
            if found is not None:
                right += right_answers(found, held_out.labels(step))
        return right / held_out.count if self.cluster.rank == 0 else None


def right_answers(logits: HostArray, labels: Sequence[int] | HostArray) -> int:
    """Count the rows of logits whose largest entry is at the label; rows beyond the labels are filling."""
    return int((np.argmax(logits[: len(labels)], axis=1) == np.asarray(labels)).sum())
