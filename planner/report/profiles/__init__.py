"""Profiles of other frameworks, compared with predictions: kernels by class, exposed communication, idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from rich.table import Table

from planner.files import format_of, read_input
from planner.report.compare import seconds_row
from planner.report.profiles.profile import Profile as Profile, read_profile as read_profile
from planner.report.schema import Report, ReportError, read_reports
from tensor_partitioner import display
from tensor_partitioner.display import table

EXPOSED, IDLE, STEP = "exposed communication", "idle, host, launches", "step"
PROJECTION = "projection/1"


class ProjectedStep(msgspec.Struct, frozen=True):
    """The fields read from a step that was priced for a framework's stack."""

    seconds: float
    shares: Mapping[str, float]
    kernels: Mapping[str, float]


def beside_profile(file: Path, profile: Profile) -> Iterator[Table | str]:
    """Yield a table of a step as predicted and as profiled, the largest difference first, and a sentence about it.

    Raises ReportError if the file has no prediction by kernel class.
    """
    predicted, measured = predicted_parts(file), measured_parts(profile)
    names = sorted(
        {*predicted, *measured} - {STEP}, key=lambda name: -abs(measured.get(name, 0.0) - predicted.get(name, 0.0))
    )
    rows = [[name, *seconds_row((predicted.get(name, 0.0), measured.get(name, 0.0)), 1)] for name in (*names, STEP)]
    yield table(f"{file.name}: seconds of a step", ["part", "predicted", "profiled", "difference", "ratio"], rows)
    if profile.collectives:
        each = [[name, display.seconds(of)] for name, of in sorted(profile.collectives.items())]
        yield table("collectives of a step, including overlapped time", ["operation", "profiled"], each)
    ratio = measured[STEP] / predicted[STEP]
    yield (
        f"{file.name}: a step was predicted to take {display.seconds(predicted[STEP])} and took "
        f"{display.seconds(measured[STEP])}, {ratio:.3g} times as long; the largest difference is in {names[0]}"
    )


def measured_parts(profile: Profile) -> dict[str, float]:
    """Return a profiled step's seconds by part."""
    return {**profile.kernels, EXPOSED: profile.exposed_s, IDLE: profile.idle_s, STEP: profile.seconds}


def predicted_parts(file: Path) -> dict[str, float]:
    """Return a predicted step's seconds by part; apart from overlap they sum to the step's."""
    text = read_input(file)
    if format_of(text) == PROJECTION:
        try:
            step = msgspec.json.decode(text, type=ProjectedStep)
        except msgspec.DecodeError as error:
            raise ReportError(f"{file}: {error}; create it again with simulate --json") from error
        exposed_s = sum(of for cause, of in step.shares.items() if cause.startswith("exposed "))
        return _with_rest(dict(step.kernels), exposed_s, step.seconds)
    report = next((report for report in read_reports(file) if report.source == "simulator" and report.tasks), None)
    if report is None or report.seconds_per_step is None:
        raise ReportError(f"{file}: the file has no prediction with tasks; create one with simulate --tasks --json")
    return _of_report(report, report.seconds_per_step)


def _of_report(report: Report, seconds: float) -> dict[str, float]:
    kernels: defaultdict[str, float] = defaultdict(float)
    exposed_s = 0.0
    for task in report.tasks:
        if task.kind == "compute":
            kernels[task.category] += task.seconds / report.workers
        else:
            exposed_s += task.seconds / report.workers
    return _with_rest(dict(kernels), exposed_s, seconds)


def _with_rest(kernels: dict[str, float], exposed_s: float, seconds: float) -> dict[str, float]:
    rest_s = max(0.0, round(seconds - exposed_s - sum(kernels.values()), 9))
    return {**kernels, EXPOSED: exposed_s, IDLE: rest_s, STEP: seconds}
