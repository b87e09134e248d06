"""A job: one plan trained for some steps on all ranks, with what is asked for beside; rank 0 gets the findings."""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.backend import synchronize
from executor.check import check
from executor.cluster import Cluster
from executor.data import DataSet, Digits, data_tensors
from executor.training import Part, Trainer, right_answers
from executor.values import Tile
from planner.graph.ir import Graph, Tensor
from planner.layout import local_shape
from planner.layout.region import whole
from planner.report.schema import CheckResult

KERNEL_TEMPORARIES = "temporaries inside kernels, at their peak"


@dataclass(frozen=True, slots=True)
class Request:
    """What a job does; the same for every plan of a command. `xp` is the array module."""

    steps: int
    xp: Any
    transport: str
    evaluate: bool = False
    check: bool = False
    trace: bool = False
    measure_memory: bool = False


@dataclass(frozen=True, slots=True)
class RankFindings:
    """What one rank found: durations of its steps, bytes per step to every rank, the moments of its last step's tasks.

    `waits` are from when to when it waited for messages in that step. Bytes outside the arena are None where not known.
    """

    seconds: tuple[float, ...]
    sent_bytes: tuple[int, ...]
    moments: tuple[float, ...]
    waits: tuple[tuple[float, float], ...]
    arena_bytes: int
    outside_arena: dict[str, int | None]


@dataclass(slots=True)
class Findings:
    """What rank 0 knows at the end of a job; `answers` are (right, all) of the last epoch."""

    ranks: list[RankFindings] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    answers: tuple[int, int] = (0, 0)
    eval_accuracy: float | None = None
    check: CheckResult | None = None

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Each step's duration: the slowest rank's."""
        return tuple(max(durations) for durations in zip(*(rank.seconds for rank in self.ranks), strict=True))

    @property
    def seconds_per_step(self) -> float:
        """The median step's duration."""
        return statistics.median(self.step_seconds)


class Job:
    """A plan being trained; every method is collective."""

    def __init__(self, part: Part, cluster: Cluster, data: DataSet, request: Request) -> None:
        self._request = request
        self._data = data
        self._cluster = cluster
        self._graph = part.plan.graph
        self._trainer = Trainer(part, cluster, request.xp, request.transport)
        self._findings = Findings()

    def run(self, progress: Callable[[], None]) -> Findings:
        """Train, then evaluate and check where asked to; `progress` is called after every step."""
        if self._request.measure_memory:
            tracemalloc.start()
        seconds, rows, moments = [], [], [0.0]
        for step in range(self._request.steps):
            moments, row = self._step(step)
            seconds.append(moments[-1] - moments[0])
            rows.append(tuple(int(n) for n in row))
            self._note_loss()
            self._note_answers(step)
            progress()
        if len(set(rows)) > 1:
            raise RuntimeError(
                f"rank {self._cluster.rank} sent different bytes in different steps: {sorted(set(rows))}"
            )
        mine = RankFindings(
            seconds=tuple(seconds),
            sent_bytes=rows[-1],
            moments=tuple(moments),
            waits=self._trainer.waits,
            arena_bytes=self._trainer.arena.nbytes,
            outside_arena=self._outside_arena(),
        )
        self._findings.ranks = self._cluster.gather(mine)
        self._after_training()
        return self._findings

    def _step(self, step: int) -> tuple[list[float], NDArray[np.int64]]:
        """Load a step's inputs and run it; only running is timed, and all ranks start together."""
        self._trainer.load(self._data, step)
        synchronize(self._request.xp)
        self._cluster.meet()
        last = step == self._request.steps - 1
        return self._trainer.run(settle=last and self._request.trace and self._request.xp is not np)

    def _note_loss(self) -> None:
        name = self._graph.metrics.get("loss")
        loss = None if name is None else self._trainer.whole(name)
        if loss is not None:
            self._findings.losses.append(float(loss.sum()))

    def _note_answers(self, step: int) -> None:
        """Count right answers in the last epoch of training."""
        if step < self._request.steps - self._data.steps_per_epoch:
            return
        metrics = classification(self._graph)
        if metrics is None:
            return
        name, labels = metrics
        logits = self._trainer.whole(name)
        if logits is not None:
            tile = Tile(labels, whole(labels.shape))
            expected = np.empty(local_shape(tile.region), labels.dtype)
            self._data.fill(np, expected, tile, step)
            right, seen = self._findings.answers
            self._findings.answers = right + right_answers(logits, expected), seen + len(expected)

    def _outside_arena(self) -> dict[str, int | None]:
        """Name what this rank allocated beside the arena."""
        trainer, xp = self._trainer, self._request.xp
        found: dict[str, int | None] = {"alignment of the arena": trainer.arena.slack_bytes}
        found.update(trainer.worker.outside_arena)
        temporaries: int | None = None
        if xp is not np:
            # The pool keeps what kernels gave back, so what it holds beside the arena is their peak.
            temporaries = max(0, xp.get_default_memory_pool().total_bytes() - trainer.arena.nbytes)
        elif self._request.measure_memory:
            temporaries = tracemalloc.get_traced_memory()[1] - tracemalloc.get_traced_memory()[0]
        found[KERNEL_TEMPORARIES] = temporaries
        return found

    def _after_training(self) -> None:
        if tracemalloc.is_tracing():
            tracemalloc.stop()
        # Evaluation leaves weights as they are, but overwrites inputs; the check compares only what updates replace.
        if self._request.evaluate and isinstance(self._data, Digits):
            self._findings.eval_accuracy = self._trainer.evaluate(self._data.held_out)
        if self._request.check:
            self._findings.check = check(self._trainer, self._data, self._request.steps)


def classification(graph: Graph) -> tuple[str, Tensor] | None:
    """Return the logits' name and the labels of a graph that classifies samples; None for any other graph."""
    logits, labels = graph.metrics.get("logits"), graph.metrics.get("labels")
    if logits is None or labels is None:
        return None
    given = {tensor.name for tensor in data_tensors(graph)}
    shapes = graph.tensors[logits].shape, graph.tensors[labels].shape
    fits = labels in given and len(shapes[0]) == 2 and shapes[1] == shapes[0][:1]
    return (logits, graph.tensors[labels]) if fits else None
