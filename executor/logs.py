"""Logs of training: lines, a table in a CSV file, scalars for TensorBoard."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from executor.schedules import LEARNING_RATE, Schedule
from executor.training import Score
from planner.errors import InputError
from planner.failures import describe_failure
from planner.files import named_errors, write_file
from planner.graph.facts import amounts
from planner.graph.ir import Graph
from tensor_partitioner.display import duration


@dataclass(frozen=True, slots=True)
class Record:
    """A log entry after `done` steps.

    `scalars` are by name, None if unknown; `left_s` is the estimated remaining time.
    """

    done: int
    steps: int
    epoch: float
    scalars: Mapping[str, float | None]
    left_s: float

    def __str__(self) -> str:
        shown = [SHOWN[name.rstrip(DIGITS)].format(value) for name, value in self.known.items()]
        left = [f"about {duration(self.left_s)} left"] if self.done < self.steps else []
        return ", ".join([f"step {self.done} of {self.steps}", f"epoch {self.epoch:.2f}", *shown, *left])

    @property
    def known(self) -> Mapping[str, float]:
        """The scalars that are known."""
        return {name: value for name, value in self.scalars.items() if value is not None}


DIGITS = "_0123456789"
"""Characters of the suffix that distinguishes several learning rates."""

SHOWN: Mapping[str, str] = {
    "loss": "loss {:.6g}",
    "lr": "lr {:.4g}",
    "held_out_accuracy": "held-out accuracy {:.2%}",
    "held_out_loss": "held-out loss {:.6g}",
    "step_ms": "{:.4g} ms",
    "samples_per_s": "{:,.4g} samples/s",
    "tokens_per_s": "{:,.4g} tokens/s",
}
"""The format of each scalar in a line, by name."""

Sink = Callable[[Record], object]


class Log:
    """Writes entries of a training to `sinks`. Speeds are measured since the last entry."""

    def __init__(self, graph: Graph, schedule: Schedule, steps: range, steps_per_epoch: int) -> None:
        rates = {node.attrs.get(LEARNING_RATE) for node in graph.nodes}
        self._rates = sorted(rate for rate in rates if isinstance(rate, int | float))
        self._schedule = schedule
        self._steps, self._steps_per_epoch = steps, steps_per_epoch
        self._amounts = amounts(graph)
        self._begun_s = self._told_s = time.monotonic()
        self._told = steps.start
        self.sinks: list[Sink] = []

    def tell(self, done: int, seconds: float, loss: float | None, score: Score) -> None:
        """Write an entry after `done` steps, the last of which took `seconds`."""
        now = time.monotonic()
        speed = (done - self._told) / (now - self._told_s)
        left_s = (now - self._begun_s) / (done - self._steps.start) * (self._steps.stop - done)
        self._told, self._told_s = done, now
        scalars = {
            "loss": loss,
            **self._learning_rates(done - 1),
            "held_out_accuracy": score.accuracy,
            "held_out_loss": score.loss,
            "step_ms": seconds * 1e3,
            **{f"{name}_per_s": amount * speed for name, amount in self._amounts.items()},
        }
        record = Record(done, self._steps.stop, done / self._steps_per_epoch, scalars, left_s)
        for sink in [*self.sinks]:
            try:
                sink(record)
            except BrokenPipeError:
                raise  # the reader left: the job ends without a word
            except OSError as error:
                self.sinks.remove(sink)
                print(f"warning: {describe_failure(error)[0]}: no more is logged there", file=sys.stderr, flush=True)

    def _learning_rates(self, step: int) -> dict[str, float]:
        factor = self._schedule.at(step)
        return {f"lr_{place}" if place else "lr": rate * factor for place, rate in enumerate(self._rates)}


def line(record: Record) -> None:
    """Print a record."""
    print(record, flush=True)


def sink_of(path: Path, first_step: int) -> Sink:
    """Return a function that writes records to a CSV file, if the suffix says so, or to a TensorBoard folder.

    A training that resumes after `first_step` steps keeps earlier entries. Raises InputError for a file that is not
    such a table, OSError, and ModuleNotFoundError if TensorBoard is not installed.
    """
    return _table(path, first_step) if path.suffix == ".csv" else _tensorboard(path, first_step)


def _table(path: Path, first_step: int) -> Sink:
    before = path.read_text().splitlines() if first_step and path.exists() else []
    try:
        rows = before[:1] + [row for row in before[1:] if int(row.partition(",")[0]) <= first_step]
    except ValueError as error:
        raise InputError(f"{path}: expected a table whose first column is the number of steps: {error}") from error
    write_file(path, "".join(f"{row}\n" for row in rows))

    def tell(record: Record) -> None:
        row = {"step": record.done, "epoch": record.epoch, **record.scalars}
        with named_errors(path), path.open("a", newline="") as file:
            writer = csv.DictWriter(file, [*row], lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)

    return tell


def _tensorboard(folder: Path, first_step: int) -> Sink:
    writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(str(folder))
    events, summaries = map(
        import_module, ("tensorboard.compat.proto.event_pb2", "tensorboard.compat.proto.summary_pb2")
    )
    if first_step:  # hides entries of later steps
        started = events.SessionLog(status=events.SessionLog.START)
        writer.add_event(events.Event(wall_time=time.time(), step=first_step + 1, session_log=started))

    def tell(record: Record) -> None:
        values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in record.known.items()]
        summary = summaries.Summary(value=values)
        writer.add_event(events.Event(wall_time=time.time(), step=record.done, summary=summary))
        writer.flush()

    return tell
