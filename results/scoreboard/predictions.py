"""Rows with what is predicted of them, beside what was measured; a row that cannot be expressed says why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import planner
from planner.failures import BAD_INPUT, describe_failure
from planner.models.zoo import is_zoo_name
from planner.parallel import Parallel
from results.scoreboard.measurements import measured_s, peak
from results.scoreboard.row import Row
from results.scoreboard.runs import Run, run_of
from results.scoreboard.sets import MeasuredSet
from simulator.projection.network import Cluster
from simulator.projection.result import Projection
from simulator.projection.stack import Stack
from tensor_partitioner.projection import project_source
from tensor_partitioner.replicas import GraphModel, Source, ZooModel

LASTING = {"weights", "weights in compute precision", "master weights", "optimizer state", "gradients"}
OUTSIDE = {"context and communicators"}
BEYOND = {"allocator fragmentation"}

OF_MEMORY: dict[str, Callable[[str], bool]] = {
    "all": lambda what: True,
    "reserved": lambda what: what not in OUTSIDE,
    "allocated": lambda what: what not in OUTSIDE | BEYOND,
    "states": lambda what: what in LASTING,
    "activations": lambda what: what == "activations",
}
"""Which lines of a projection's memory what was measured is of."""

MOST = 4096


@dataclass(frozen=True, slots=True)
class Prediction:
    """A row and what is predicted of it; None where there is nothing to predict, or why not.

    `way` is how it is parallel, of several the fastest that fits. Seconds are of a step, bytes of the fullest device.
    `flop` are a step's operations by the predictor's count, `peak_flop_per_s` the data sheet's of all devices,
    `own_peak_flop_per_s` in 8 bits where these are trained in.
    `failed` is for rows that the predictor ended with an error of its own.
    """

    row: Row
    run: Run | None = None
    way: Parallel | None = None
    measured_s: float | None = None
    predicted_s: float | None = None
    measured_bytes: float | None = None
    predicted_bytes: float | None = None
    needed_bytes: float | None = None
    fits: bool | None = None
    flop: float = 0.0
    peak_flop_per_s: float = 0.0
    own_peak_flop_per_s: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)
    why: str = ""
    failed: bool = False
    cpu_s: float = 0.0

    @property
    def ran(self) -> bool | None:
        """True for a run that ended, False for one out of memory, None where neither is said."""
        if self.row.oom:
            return False
        measured = self.measured_s is not None or (self.row.memory is not None and self.row.memory_of is None)
        return True if measured else None

    @property
    def error(self) -> float | None:
        """By how much the predicted step is longer than the measured one."""
        if self.predicted_s is None or self.measured_s is None:
            return None
        return self.predicted_s / self.measured_s - 1


def predict(measured: MeasuredSet, progress: Callable[[int], None] = lambda _: None) -> Iterator[Prediction]:
    """Yield a prediction for every row that could be read, in their order."""
    for number, row in enumerate(measured.rows):
        progress(number)
        yield predict_row(row, measured.folder)


def predict_row(row: Row, folder: Path) -> Prediction:
    """Predict a row; whatever is wrong with it, or ends the predictor, is said in one line."""
    started = time.process_time()
    try:
        prediction = _predicted(row, run_of(row, folder))
    except Exception as error:  # one row does not end the others; it is counted and said
        why, status = describe_failure(error)
        return Prediction(row, why=why, failed=status != BAD_INPUT, cpu_s=time.process_time() - started)
    return replace(prediction, cpu_s=time.process_time() - started)


def _predicted(row: Row, run: Run) -> Prediction:
    way, step = _best(run)
    lines = [line.nbytes for line in step.memory if OF_MEMORY[row.memory_of or "all"](line.what)]
    seconds = None if row.oom else measured_s(row, run)

    return Prediction(
        row,
        run,
        way,
        measured_s=seconds,
        predicted_s=step.seconds,
        measured_bytes=row.memory,
        predicted_bytes=sum(lines),
        needed_bytes=step.needed_bytes,
        fits=step.fits,
        flop=_flop(row, run, step),
        peak_flop_per_s=peak(run) * run.devices,
        own_peak_flop_per_s=peak(run, in_eight_bits=True) * run.devices,
        shares=dict(step.shares),
    )


def _best(run: Run) -> tuple[Parallel, Projection]:
    """Return the fastest of the ways that fit, else of all: first by micro-batch, then by chunks."""
    projections = {way: projection(run, way, run.stack) for way in run.ways if way.chunks == run.ways[0].chunks}
    first = min(projections, key=lambda way: (not projections[way].fits, projections[way].seconds))
    projections |= {way: projection(run, way, run.stack) for way in run.ways if way.micro_batch == first.micro_batch}
    return min(projections.items(), key=lambda item: (not item[1].fits, item[1].seconds))


def projection(run: Run, way: Parallel, stack: str | Stack) -> Projection:
    """Return a run's step, parallel in one of its ways, by a stack."""
    return _cached(run.name, run.options, run.batch, way, run.machine, stack)


@lru_cache(MOST)
def _cached(  # noqa: PLR0913, PLR0917 -- what a projection is of
    name: str, options: tuple[tuple[str, object], ...], batch: int, way: Parallel, machine: Cluster, stack: str | Stack
) -> Projection:
    samples = (way.micro_batch or batch // way.dp) * way.ep
    return project_source(_source(name, options, samples), batch, way, machine, stack)


@lru_cache(MOST)
def _source(name: str, options: tuple[tuple[str, object], ...], samples: int) -> Source:
    """Return a zoo's model, or the graph that a function makes of the samples of a micro-batch."""
    known = {key: value for key, value in options if value is not None}
    if is_zoo_name(name):
        return ZooModel.of(name, known)
    return GraphModel(planner.model(name, batch=samples, **known))


def _flop(row: Row, run: Run, projection: Projection) -> float:
    """Return a step's operations: of a transformer counted by its sizes, of others as the predictor counts them."""
    if run.size is None:
        return max(projection.hardware_operations, 1.0)
    return float(run.size.hardware_flop(run.batch, row.recompute))


def all_seconds(predictions: Sequence[Prediction]) -> float:
    """Return the CPU seconds that predicting rows took."""
    return sum(prediction.cpu_s for prediction in predictions)
