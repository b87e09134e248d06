"""A job: train one plan for some steps on all ranks. Rank 0 gets the result."""

from __future__ import annotations

import re
import sys
import tracemalloc
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from executor.backend import HOST_CLOCK, clock_of, synchronize
from executor.check import check
from executor.checkpoint import (
    FINITE,
    Checkpoint,
    Saver,
    file_digest,
    first_not_finite,
    not_finite_here,
    require_agreement,
    saved_tensors,
)
from executor.cluster import Cluster
from executor.data import DataSet
from executor.kernels import LIBRARIES
from executor.logs import Log
from executor.process.launch import agree
from executor.schedules import CONSTANT, Schedule
from executor.training import RankPrograms, Score, Trainer, right_answers, whole_input
from executor.values import Array
from executor.weights import Weights
from executor.weights.saving import save_weights
from planner.errors import InputError
from planner.graph.facts import classification
from planner.program.tasks import Compute, Task
from planner.report.schema import CheckResult, Duration, TaskSeconds, task_seconds

WARM_UP = 2
"""Steps that run before one is captured as a graph."""

SHOWN_DIGITS = 12
"""Digits of a digest that an error shows."""

KERNEL_TEMPORARIES = "temporaries inside kernels, at their peak"


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of `steps` steps, or of an epoch if that is None."""

    steps: int | None

    def __str__(self) -> str:
        return "epoch" if self.steps is None else str(self.steps)

    def is_due(self, done: int, steps_per_epoch: int) -> bool:
        """Return whether an interval ends after `done` steps."""
        return done % (self.steps or steps_per_epoch) == 0


def read_interval(text: str) -> Interval:
    """Read a number of steps, or the word `step` or `epoch`. Raises InputError for anything else."""
    if text in ("step", "epoch"):
        return Interval(1 if text == "step" else None)
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise InputError(f"expected a number of steps from 1, or 'step' or 'epoch', found {text!r}")
    return Interval(int(text))


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job does. `xp` is the array module; `steps` includes those before `resume`.

    Held-out samples are evaluated every `evaluate_every` and at the end; checkpoints go to the folder `checkpoint`,
    likewise. Training starts with `weights` and writes its final weights to `save_weights`. `planned_bytes` are the GPU
    bytes that the job is expected to use. With `graphs`, steps are launched as a device graph after a few steps.
    `on_nan` says what happens after a step that is not finite. If they `agree`, ranks compare their inputs and
    replicas.
    """

    steps: int
    xp: Any
    transport: str
    data: DataSet
    schedule: Schedule = CONSTANT
    evaluate: bool = False
    evaluate_every: Interval | None = None
    log_every: Interval | None = None
    log_to: Path | None = None
    checkpoint: Path | None = None
    checkpoint_every: Interval | None = None
    resume: Checkpoint | None = None
    weights: Weights | None = None
    save_weights: Path | None = None
    on_nan: Literal["stop", "skip", "continue"] = "continue"
    agree: bool = True
    check: bool = False
    trace: bool = False
    tasks: bool = False
    measure_memory: bool = False
    graphs: bool = False
    planned_bytes: int | None = None

    @property
    def first_step(self) -> int:
        """The first step to run."""
        return 0 if self.resume is None else self.resume.manifest.step


TracedTask = tuple[str, int]
"""A task's name in a trace, and its track: 0 for computation, 1 for transfers."""


@dataclass(frozen=True, slots=True)
class RankResult:
    """The measurements of one rank: seconds of steps, bytes sent to each rank per step, times of the last step's tasks.

    `moments` are before and after each task of the last step; `traced` and `tasks` are empty unless requested. Bytes
    outside the arena are None if unknown.
    """

    seconds: tuple[float, ...]
    sent_bytes: tuple[int, ...]
    moments: tuple[float, ...]
    traced: tuple[TracedTask, ...]
    tasks: tuple[TaskSeconds, ...]
    compute_seconds: float
    arena_bytes: int
    planned_arena_bytes: int
    outside_arena: dict[str, int | None]


@dataclass(slots=True)
class JobResult:
    """The result of a job on rank 0. `answers` are (right, all) samples of the last epoch.

    `evaluations` are by number of steps done. `diverged` says what was not finite, if that ended training. `left_out`
    are entries of the state dict whose content is unknown; `library` says whose kernels ran.
    """

    first_step: int = 0
    library: str = ""
    ranks: list[RankResult] = field(default_factory=list)
    losses: MutableSequence[float] = field(default_factory=lambda: array("d"))
    answers: tuple[int, int] = (0, 0)
    evaluations: dict[int, Score] = field(default_factory=dict)
    diverged: str = ""
    left_out: list[str] = field(default_factory=list)
    check: CheckResult | None = None

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """The seconds of each step: those of the slowest rank."""
        return tuple(max(durations) for durations in zip(*(rank.seconds for rank in self.ranks), strict=True))


class Job:
    """A plan in training. Rank 0 writes to the log, if there is one. Every method is collective."""

    def __init__(self, programs: RankPrograms, cluster: Cluster, request: JobRequest, log: Log | None = None) -> None:
        self._request = request
        self._log = log
        self._data = request.data
        self._cluster = cluster
        self._graph = programs.plan.graph
        self._trainer = Trainer(programs, cluster, request.xp, request.transport, request.schedule)
        self._result = JobResult(request.first_step, self._trainer.kernels.library)
        if request.graphs:
            agree(cluster, self._trainer.worker.require_capture)
        self._changed = [tensor.name for tensor in saved_tensors(self._graph)]
        self._fault, self._loss_place = "", FINITE
        self._saver: Saver | None = None
        if request.checkpoint is not None:
            self._saver = Saver(request.checkpoint, self._trainer, request.data.identity, request.schedule.text)

    def close(self) -> None:
        """Let other jobs write checkpoints to the same folder."""
        if self._saver is not None:
            self._saver.close()

    def run(self, progress: Callable[[], None]) -> JobResult:
        """Train, then evaluate and check if requested. `progress` is called after every step."""
        self._begin()
        if self._request.measure_memory:
            tracemalloc.start()
        seconds, rows, moments = array("d"), set(), [0.0]  # of any number of steps, in little memory
        for step in range(self._request.first_step, self._request.steps):
            self._load(step)
            if self._cluster.least(self._loss_place) != FINITE:
                self._result.diverged = f"step {step}: the loss is not finite"
                break
            kept = self._kept()
            moments, row = self._run(step)
            seconds.append(moments[-1] - moments[0])
            rows.add(tuple(int(n) for n in row))
            self._note_loss()
            self._note_answers(step)
            if self._is_over(step + 1, kept):
                break
            self._after_step(step + 1, seconds[-1])
            progress()
        if len(rows) > 1:
            raise RuntimeError(f"rank {self._cluster.rank} sent different bytes in different steps: {sorted(rows)}")
        worker = self._trainer.programs.training.worker
        took = durations(moments, self._trainer.waits)
        result = RankResult(
            seconds=tuple(seconds),
            sent_bytes=rows.pop(),
            moments=tuple(moments),
            traced=tuple(map(traced_task, worker.tasks)) if self._request.trace else (),
            tasks=task_seconds(worker, took) if self._request.tasks else (),
            compute_seconds=compute_seconds(worker.tasks, took),
            arena_bytes=self._trainer.arena.nbytes,
            planned_arena_bytes=self._trainer.programs.arena_bytes,
            outside_arena=self._outside_arena(),
        )
        self._result.ranks = self._cluster.gather(result)
        if tracemalloc.is_tracing():
            tracemalloc.stop()
        # Evaluation overwrites inputs but not weights; the check only compares tensors that updates replace.
        if self._request.check and not self._result.diverged:
            self._result.check = check(self._trainer, self._data, self._request.steps)
        return self._result

    def finish(self) -> JobResult:
        """Evaluate and save weights, if requested, without training."""
        self._begin()
        if self._request.evaluate:
            self._evaluate(self._request.first_step)
        self._save_weights(self._request.first_step)
        return self._result

    def _begin(self) -> None:
        if self._request.weights is not None:
            self._trainer.begin_with(self._request.weights)
        if self._request.resume is not None:
            self._request.resume.restore(self._trainer)
        if self._request.agree:
            given = {"--data": " ".join(word[:SHOWN_DIGITS] for word in self._data.identity.split())}
            if self._request.weights is not None:
                given["--weights"] = file_digest(Path(self._request.weights.where), self._cluster)
            require_agreement(self._trainer, given)

    def _load(self, step: int) -> None:
        self._trainer.load(self._data, step)
        if self._request.graphs and step == self._request.first_step + WARM_UP:
            self._trainer.worker.capture()
        synchronize(self._request.xp)

    def _run(self, step: int) -> tuple[list[float], NDArray[np.int64]]:
        """Run a step whose inputs are loaded on all ranks. Only this part is timed."""
        request, last = self._request, step == self._request.steps - 1
        return self._trainer.run(clock_of(request.xp) if last and (request.trace or request.tasks) else HOST_CLOCK)

    def _after_step(self, done: int, seconds: float) -> None:
        """Evaluate, write a checkpoint and log if an interval ends. The last step also evaluates and writes."""
        request, last = self._request, done == self._request.steps
        if self._is_due(request.evaluate_every, done) or (last and request.evaluate):
            self._evaluate(done)
        if self._saver is not None and (last or self._is_due(request.checkpoint_every, done)):
            self._save(self._saver, done)
        if last:
            self._save_weights(done)
        if self._log is not None and self._is_due(request.log_every or Interval(1), done):
            loss = self._result.losses[-1] if self._result.losses else None
            self._log.tell(done, seconds, loss, self._result.evaluations.get(done, Score()))

    def _save(self, saver: Saver, done: int) -> None:
        """Write a checkpoint, unless a value is not finite. With `agree`, replicas must be equal."""
        if self._fault and self._request.on_nan == "continue":
            return
        if self._request.agree:
            require_agreement(self._trainer, {})
        saver.save(done)

    def _save_weights(self, done: int) -> None:
        if self._request.save_weights is not None:
            self._result.left_out = save_weights(self._request.save_weights, self._trainer, done)

    def _evaluate(self, done: int) -> None:
        held_out = self._data.held_out
        if held_out is None:
            raise ValueError(f"data set {self._data.identity}: expected samples held out, found none")
        score = self._trainer.evaluate(held_out)
        if score is not None:
            self._result.evaluations[done] = score

    def _note_loss(self) -> None:
        name = self._graph.metrics.get("loss")
        loss = None if name is None else self._trainer.whole(name)
        if loss is not None:
            self._result.losses.append(float(loss.sum()))

    def _kept(self) -> Mapping[str, Array]:
        """Copy the tensors that a step changes, if a step that is not finite is to be undone."""
        if self._request.on_nan != "skip":
            return {}
        return {name: self._trainer.view(name).copy() for name in self._changed}

    def _is_over(self, done: int, kept: Mapping[str, Array]) -> bool:
        """Return whether training ends because a step is not finite. If the state before is `kept`, undo the step.

        The loss is checked here on each rank and shared when ranks meet before the next step. The changed tensors are
        only checked if the step can be undone or a checkpoint is due.
        """
        request, loss = self._request, [name for metric, name in self._graph.metrics.items() if metric == "loss"]
        if not kept and not (done == request.steps or self._is_due(request.checkpoint_every, done)):
            self._loss_place = not_finite_here(self._trainer, loss) if request.on_nan == "stop" else FINITE
            return False
        name = first_not_finite(self._trainer, [*loss, *self._changed])
        self._fault = f"step {done}: {'the loss' if name in loss else name} is not finite" if name else ""
        if request.on_nan == "stop":
            self._result.diverged = self._fault
        elif self._fault and self._cluster.rank == 0:
            consequence = "the step is skipped" if kept else "no checkpoint is written"
            print(f"warning: {self._fault}: {consequence}", file=sys.stderr, flush=True)
        for changed, value in kept.items() if self._fault else ():
            self._trainer.view(changed)[...] = value
        return bool(self._result.diverged)

    def _is_due(self, every: Interval | None, done: int) -> bool:
        return every is not None and every.is_due(done, self._data.steps_per_epoch)

    def _note_answers(self, step: int) -> None:
        """Count right answers in the last epoch of training, unless the data set scores by the loss.

        Of several micro-batches, only the last one's logits are stored.
        """
        held_out, metrics = self._data.held_out, classification(self._graph)
        is_scored = held_out is None or held_out.metric == "logits"
        if metrics is None or not is_scored or step < self._request.steps - self._data.steps_per_epoch:
            return
        name, labels = metrics
        logits = self._trainer.whole(name)
        if logits is not None:
            expected = whole_input(labels, self._data, step, self._graph.micro_batches - 1)
            right, seen = self._result.answers
            self._result.answers = right + right_answers(logits, expected), seen + expected.size

    def _outside_arena(self) -> dict[str, int | None]:
        """Return what this rank allocated outside the arena; on a GPU, also its memory in use and planned."""
        trainer, request = self._trainer, self._request
        sizes: dict[str, int | None] = {"alignment of the arena": trainer.arena.slack_bytes}
        sizes.update(trainer.worker.outside_arena)
        if request.xp is not np:
            return sizes | self._on_device()
        temporaries = None
        if request.measure_memory and trainer.kernels is LIBRARIES["arrays"]:  # tracemalloc sees NumPy's allocations
            temporaries = tracemalloc.get_traced_memory()[1] - tracemalloc.get_traced_memory()[0]
        return sizes | {KERNEL_TEMPORARIES: temporaries}

    def _on_device(self) -> dict[str, int | None]:
        """Return what allocators reserve (the peak use of kernels), and how much of the device's memory is in use."""
        free, total = self._request.xp.cuda.runtime.memGetInfo()
        held = self._trainer.kernels.held_bytes()
        return {
            KERNEL_TEMPORARIES: self._request.xp.get_default_memory_pool().total_bytes(),
            **({"held by PyTorch's allocator": held} if held else {}),
            "all that is in use of the GPU's memory": int(total - free),
            "all that was planned of it": self._request.planned_bytes,
        }


def traced_task(task: Task) -> TracedTask:
    """Return the name and track of a task in a trace."""
    return (task.title, 0) if isinstance(task, Compute) else (f"{type(task).__name__} {task.transfer}", 1)


def durations(moments: Sequence[float], waits: Sequence[tuple[float, float]]) -> list[Duration]:
    """Return the seconds of each task of a step, and the part of them for which it waited."""
    waited = [0.0] * len(moments)
    for start, stop in waits:
        waited[bisect_right(moments, start) - 1] += stop - start
    return [(stop - start, waited[number]) for number, (start, stop) in enumerate(pairwise(moments))]


def compute_seconds(tasks: Sequence[Task], took: Sequence[Duration]) -> float:
    """Return the seconds in which a step's compute tasks computed, without waiting for readers of their outputs."""
    return sum(
        seconds - waited for task, (seconds, waited) in zip(tasks, took, strict=True) if isinstance(task, Compute)
    )
