"""Predicted and measured seconds of tasks side by side: by kind, by category of kernels, and where they differ most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from rich.table import Table

from planner.report.compare import PlanComparison, column_title
from planner.report.schema import Report, ReportError, TaskSeconds
from tensor_partitioner.display import seconds, table

LISTED = 20
Pair = tuple[float, float]


def task_tables(comparison: PlanComparison) -> Iterator[Table]:
    """Show a prediction's tasks beside a measurement's, each the mean over workers.

    Raises `ReportError` unless one report of the simulator and one of the executor have them.
    """
    predicted, measured = (_only(comparison, source) for source in ("simulator", "executor"))
    titles = column_title(predicted), column_title(measured)
    workers = predicted.workers
    for what, field in (("kind", "kind"), ("category of kernels", "category")):
        pairs = _paired(predicted, measured, attrgetter(field))
        rows = [[str(key), *_row(pair, workers)] for key, pair in pairs.items() if key]
        yield table(f"{comparison.plan}: seconds of a worker by {what}", [what, *titles, "difference", "ratio"], rows)
    tasks = _paired(predicted, measured, attrgetter("task", "kind"))
    names = {(task.task, task.kind): task.what for task in (*predicted.tasks, *measured.tasks)}
    far = sorted(tasks, key=lambda key: -abs(tasks[key][1] - tasks[key][0]))[:LISTED]
    rows = [[*map(str, key), names[key], *_row(tasks[key], workers)] for key in far]
    yield table(
        f"{comparison.plan}: the tasks that differ most",
        ["task", "kind", "what", *titles, "difference", "ratio"],
        rows,
    )


def _only(comparison: PlanComparison, source: str) -> Report:
    """Return the last report of a source; a prediction for the machine of the measurement, where there is one."""
    reports = [report for report in comparison.reports if report.source == source and report.tasks]
    measured_on = {report.machine for report in comparison.reports if report.source == "executor"}
    if not reports:
        command = "simulate" if source == "simulator" else "execute"
        raise ReportError(
            f"{comparison.plan}: expected a report of the {source} with tasks, found none: {command} --tasks --json"
        )
    return next((report for report in reports if report.machine in measured_on), reports[-1])


def _paired(predicted: Report, measured: Report, group: Callable[[TaskSeconds], Any]) -> Mapping[Any, Pair]:
    sums: defaultdict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for column, report in enumerate((predicted, measured)):
        for task in report.tasks:
            sums[group(task)][column] += task.seconds
    return {key: (pair[0], pair[1]) for key, pair in sums.items()}


def _row(pair: Pair, workers: int) -> tuple[str, str, str, str]:
    predicted, measured = (value / workers for value in pair)
    sign = "-" if measured < predicted else "+"
    ratio = f"{measured / predicted:.3g}" if predicted else "-"
    return seconds(predicted), seconds(measured), sign + seconds(abs(measured - predicted)), ratio
