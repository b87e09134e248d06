"""Training of a plan on one rank: arena, inputs, weights and steps, and evaluation in the same arena."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.arena import Memory
from executor.backend import HOST_CLOCK, Clock, asnumpy
from executor.cluster import Cluster, HostArray
from executor.data import DataSet, HeldOut, data_tensors
from executor.process.launch import agree
from executor.schedules import CONSTANT, Rate, Schedule
from executor.transport import Transport
from executor.values import Tile, fill, indices, stream
from executor.weights import Weights
from executor.worker import Worker, kernel_set
from planner.graph.ir import Graph, Tensor
from planner.graph.training import inference_graph
from planner.layout import Region
from planner.layout.region import whole
from planner.plans.plan import Plan
from planner.program.in_order import in_order
from planner.program.lower import Lowering
from planner.program.tasks import WorkerProgram


@dataclass(frozen=True, slots=True)
class RankProgram:
    """One rank's tasks in execution order, its buffers, the regions of stored tensors on all ranks, and the metrics."""

    worker: WorkerProgram
    tensors: Mapping[str, int]
    regions: Mapping[str, Sequence[Region]]
    metrics: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RankPrograms:
    """The programs of one rank for training and, optionally, for evaluation.

    Both place weights at the same offsets of one arena.
    """

    plan: Plan
    training: RankProgram
    evaluation: RankProgram | None

    @property
    def arena_bytes(self) -> int:
        """Bytes of an arena for both programs."""
        return max(program.worker.arena_bytes for program in (self.training, self.evaluation) if program is not None)


def rank_programs(plan: Plan, rank: int, prefetch: int = 1, evaluate: str | None = None) -> RankPrograms:
    """Lower one rank's part of a plan. Evaluation computes the metric `evaluate`, and uses running averages."""
    training = _lowered(Lowering(plan, prefetch), rank, plan.graph)
    if evaluate is None:
        return RankPrograms(plan, training, None)
    inference = replace(plan, graph=inference_graph(plan.graph))
    nodes = needed_nodes(inference.graph, inference.graph.metrics[evaluate])
    return RankPrograms(plan, training, _lowered(Lowering(inference, prefetch, nodes), rank, inference.graph))


def _lowered(lowering: Lowering, rank: int, graph: Graph) -> RankProgram:
    return RankProgram(in_order(lowering.worker(rank)), lowering.tensors, lowering.regions, graph.metrics)


def needed_nodes(graph: Graph, tensor: str) -> tuple[str, ...]:
    """Return the nodes that a tensor depends on, in the graph's order."""
    wanted, names = {tensor}, []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            names.append(node.name)
    return tuple(reversed(names))


class Trainer:
    """One rank that trains a plan. Initial values follow from the plan's seed, unless `begin_with` sets others.

    `xp` is the array module, `schedule` that of learning rates.
    """

    def __init__(
        self, programs: RankPrograms, cluster: Cluster, xp: Any, transport: str, schedule: Schedule = CONSTANT
    ) -> None:
        self.programs = programs
        self.weights: Weights | None = None
        self.schedule = schedule
        self.rate = Rate()
        self.graph = programs.plan.graph
        self.cluster = cluster
        self.xp = xp
        self._transport = cluster.transport(transport)
        self.arena = self._transport.arena(xp, programs.arena_bytes, cluster.comm)
        self.kernels = kernel_set(cluster.library, Memory(self.arena, programs.training.worker), cluster)
        self.worker = self._worker(programs.training)
        self.reset()

    def begin_with(self, weights: Weights) -> None:
        """Use these initial weights (collective). Raises SharedError if they cannot be read."""
        self.weights = weights
        agree(self.cluster, self.reset)

    def reset(self) -> None:
        """Set weights, states and constant inputs to their initial values."""
        for name, tensor in self.graph.tensors.items():
            if tensor.init is None or tensor.init.kind == "data":
                continue
            if self.weights is not None and name in self.weights:
                tile = self._tile(self.programs.training, name)
                self.view(name)[...] = self.xp.asarray(self.weights.tile(tensor, tile.region))
                continue
            for view, tile in self.tiles(name):
                fill(self.xp, view, tile, stream(self.programs.plan.seed, name))

    def _worker(self, program: RankProgram) -> Worker:
        def transport(memory: Memory) -> Transport:
            return self._transport.transport(memory, self.cluster.comm, self.cluster.crowded)

        return Worker(program.worker, self.arena, transport, self.rate, self.kernels)

    @cached_property
    def _evaluator(self) -> tuple[RankProgram, Worker]:
        """The program for evaluation and its worker, in the same arena."""
        if self.programs.evaluation is None:
            raise ValueError("expected a program for evaluation, found none")
        return self.programs.evaluation, self._worker(self.programs.evaluation)

    def _tile(self, program: RankProgram, name: str) -> Tile:
        return Tile(self.graph.tensors[name], program.regions[name][self.cluster.rank])

    def tiles(self, name: str) -> Iterator[tuple[Any, Tile]]:
        """Yield the local array of a stored tensor and its tile; for an input, those of every micro-batch."""
        memory, tile = self.worker.memory, self._tile(self.programs.training, name)
        buffer = memory.buffers[self.programs.training.tensors[name]]
        for slot in range(buffer.slots or 1):
            first_row = slot * tile.tensor.shape[0] if slot else 0
            yield memory.array(buffer.slot(slot)), replace(tile, first_row=first_row)

    def view(self, name: str) -> Any:
        """Return the local array of a stored tensor."""
        return self.worker.memory.views[self.programs.training.tensors[name]]

    def load(self, data: DataSet, step: int) -> None:
        """Load the inputs of a step, and set the step's learning rate."""
        self.rate.multiply(self.schedule.at(step))
        for tensor in data_tensors(self.graph):
            for view, tile in self.tiles(tensor.name):
                data.fill(self.xp, view, tile, step)

    @property
    def waits(self) -> tuple[tuple[float, float], ...]:
        """When the last step waited for messages, as (start, stop) in seconds."""
        return tuple(self.worker.transport.waits)

    def run(self, clock: Clock = HOST_CLOCK) -> tuple[list[float], NDArray[np.int64]]:
        """Run one step on the loaded inputs; return its moments (see Worker.run) and the bytes sent to each rank."""
        sent = self.worker.transport.sent_bytes
        sent.fill(0)
        self.worker.transport.waits.clear()
        moments = self.worker.run(clock)
        return moments, sent.copy()

    def run_keeping(self, names: Sequence[str]) -> dict[str, HostArray]:
        """Run one step on the loaded inputs; return copies of stored tensors as they were before their last use.

        They are in the order of their names, the same on every rank. A tensor that is not used is copied when it is
        computed.
        """
        kept: dict[str, HostArray] = {}

        def keep(name: str) -> None:
            kept[name] = self.host_copy(name)

        stored = self.programs.training
        buffers = {name: stored.worker.buffers[stored.tensors[name]] for name in names}
        looks = ((buffer.last + (buffer.first == buffer.last), name) for name, buffer in buffers.items())
        self.worker.run(looks=[(position, partial(keep, name)) for position, name in looks])
        return {name: kept[name] for name in names}

    def write(self, name: str, whole: HostArray) -> None:
        """Set this rank's part of a stored tensor, given all of its elements in order."""
        tile = self._tile(self.programs.training, name)
        part = whole.reshape(tile.tensor.shape)[np.ix_(*map(indices, tile.region))]
        self.view(name)[...] = self.xp.asarray(part.astype(tile.tensor.dtype))

    def host_copy(self, name: str) -> HostArray:
        """Return a copy of a stored tensor's local array."""
        return np.array(asnumpy(self.view(name)))

    def whole(self, name: str, tile: HostArray | None = None) -> HostArray | None:
        """Return a stored tensor, or the tiles that ranks kept of it, assembled on rank 0 (collective).

        None on other ranks.
        """
        tile = asnumpy(self.view(name)) if tile is None else tile
        return self.cluster.assemble(self.graph.tensors[name], self.programs.training.regions[name], tile)

    def evaluate(self, held_out: HeldOut) -> Score | None:
        """Return the score of the held-out samples on rank 0 (collective); None on other ranks.

        Weights do not change; inputs and all computed tensors are overwritten.
        """
        scores = [self._scored(held_out, step) for step in range(held_out.steps_per_epoch)]
        if self.cluster.rank != 0:
            return None
        if held_out.metric == "logits":
            return Score(accuracy=sum(scores) / held_out.count)
        return Score(loss=sum(scores) / len(scores))

    def evaluated(self, metric: str, data: DataSet | HeldOut, step: int, micro_batch: int = 0) -> HostArray | None:
        """Return a micro-batch's metric, computed by the evaluation program, on rank 0 (collective); None elsewhere."""
        program, worker = self._evaluator
        name = program.metrics[metric]
        for tensor in data_tensors(self.graph):
            first_row = micro_batch * tensor.shape[0] if micro_batch else 0
            part = replace(self._tile(program, tensor.name), first_row=first_row)
            data.fill(self.xp, self.view(tensor.name), part, step)
        worker.run()
        tile = asnumpy(worker.memory.views[program.tensors[name]])
        return self.cluster.assemble(self.graph.tensors[name], program.regions[name], tile)

    def _scored(self, held_out: HeldOut, step: int) -> float:
        """Return the number of right answers of a batch, in samples, or its loss, on rank 0."""
        whole_metric = self.evaluated(held_out.metric, held_out, step)
        if whole_metric is None or held_out.metric == "loss":
            return 0.0 if whole_metric is None else float(whole_metric.sum())
        labels = whole_input(self.graph.tensors[self.graph.metrics["labels"]], held_out, step)
        rows, each = len(labels) // held_out.batch, labels.size / held_out.batch
        return float(right_answers(whole_metric, labels[: held_out.real(step) * rows]) / each)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of held-out samples: the share of right answers, or the mean loss."""

    accuracy: float | None = None
    loss: float | None = None

    def __str__(self) -> str:
        if self.accuracy is not None:
            return f"accuracy {self.accuracy:.2%}"
        return f"loss {self.loss:.6g}"


def whole_input(tensor: Tensor, data: DataSet | HeldOut, step: int, micro_batch: int = 0) -> HostArray:
    """Return the whole input of a micro-batch at a step, in host memory."""
    tile = Tile(tensor, whole(tensor.shape), micro_batch * tensor.shape[0] if micro_batch else 0)
    out = np.empty(tensor.shape, tensor.dtype)
    data.fill(np, out, tile, step)
    return out


def right_answers(logits: HostArray, labels: Sequence[int] | HostArray) -> int:
    """Count the rows of logits [..., classes] whose largest entry is at the label.

    Rows beyond the labels are padding.
    """
    return int((np.argmax(logits[: len(labels)], axis=-1) == np.asarray(labels)).sum())
