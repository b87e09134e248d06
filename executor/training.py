"""One rank training a plan: its arena, inputs, weights and steps, and evaluation over the same arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.arena import Arena, Memory
from executor.backend import asnumpy
from executor.cluster import Cluster, HostArray
from executor.data import DataSet, HeldOut, data_tensors
from executor.transport import TRANSPORTS, Transport
from executor.values import Tile, fill, stream
from executor.worker import Worker
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.program.lower import lower
from planner.program.tasks import Program


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


def lowered(plan: Plan, prefetch: int, transport: str, evaluate: bool) -> Programs:
    """Lower a plan; evaluation runs just the nodes that the logits need."""
    training = lower(plan, prefetch=prefetch, transport=transport)
    if not evaluate:
        return Programs(plan, training)
    nodes = needed_nodes(plan.graph, plan.graph.metrics["logits"])
    return Programs(plan, training, lower(plan, prefetch=prefetch, transport=transport, nodes=nodes))


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

    def __init__(self, programs: Programs, cluster: Cluster, xp: Any, transport: str) -> None:
        self.programs = programs
        self.graph = programs.plan.graph
        self.cluster = cluster
        self.xp = xp
        self._make_transport = TRANSPORTS[transport]
        self.arena = Arena(xp, programs.arena_bytes(cluster.rank))
        self.worker = self._worker(programs.training)
        for name, tensor in self.graph.tensors.items():
            if tensor.init is not None and tensor.init.kind != "data":
                fill(xp, self._view(name), self._tile(programs.training, name), stream(programs.plan.seed, name))

    def _worker(self, program: Program) -> Worker:
        def transport(memory: Memory) -> Transport:
            return self._make_transport(memory, self.cluster.comm, self.cluster.wait)

        return Worker(program.workers[self.cluster.rank], self.arena, transport)

    def _tile(self, program: Program, name: str) -> Tile:
        return Tile(self.graph.tensors[name], program.regions[name][self.cluster.rank])

    def _view(self, name: str) -> Any:
        return self.worker.memory.views[self.programs.training.tensors[name]]

    def load(self, data: DataSet, step: int) -> None:
        """Put the inputs of a step into their buffers."""
        for tensor in data_tensors(self.graph):
            data.fill(self.xp, self._view(tensor.name), self._tile(self.programs.training, tensor.name), step)

    def run(self, settle: bool = False) -> tuple[list[float], NDArray[np.int64]]:
        """Run one step on what was loaded; return its moments (see Worker.run) and the bytes sent to every rank."""
        sent = self.worker.transport.sent_bytes
        sent.fill(0)
        moments = self.worker.run(settle)
        return moments, sent.copy()

    def whole(self, name: str) -> HostArray | None:
        """Put a stored tensor together on rank 0 (collective); None elsewhere."""
        program = self.programs.training
        return self.cluster.assemble(self.graph.tensors[name], program.regions[name], asnumpy(self._view(name)))

    def evaluate(self, held_out: HeldOut) -> float | None:
        """Return, on rank 0, the share of held-out images that are classified right (collective); None elsewhere.

        Batch normalization uses the statistics of the batch that is evaluated.
        """
        program = self.programs.evaluation
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
