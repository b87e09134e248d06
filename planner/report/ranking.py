"""Reports in order: a row for each, the best marked, and how many times as much as the best the others take."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from planner.report.compare import PlanComparison, column_title, equality
from planner.report.schema import Report
from planner.report.tables import fullest, peak_of_capacity
from tensor_partitioner.display import exact_bytes, number, percent, quantity, seconds, table

BEST = "best"
SECONDS, OF_THE_RUN = "seconds per step", "of the run"
COLUMNS = (
    *("plan", "", SECONDS, "to the best", "samples/s", "exposed", "bytes per step", "to the least"),
    *("largest arena", "memory", "pairs of workers"),
)


def ranking_table(comparisons: Sequence[PlanComparison]) -> Table:
    """Show a row for every report; seconds are in proportion to the best of the same work, machine and kind alone.

    Where there are simulations and runs, the former's are in proportion to the latter's of the same plan, too.
    """
    reports = [report for comparison in comparisons for report in comparison.reports]
    rows = [_row(comparison, report, reports) for comparison in comparisons for report in comparison.reports]
    if len({report.source for report in reports}) == 1:
        return table("reports", COLUMNS, rows, keys=2, text=("",))
    ratios = (_of_the_run(report, comparison.reports) for comparison in comparisons for report in comparison.reports)
    after = COLUMNS.index(SECONDS) + 1
    columns = (*COLUMNS[:after], OF_THE_RUN, *COLUMNS[after:])
    wide = [(*row[:after], ratio, *row[after:]) for row, ratio in zip(rows, ratios, strict=True)]
    return table("reports", columns, wide, keys=2, text=("",))


def fastest(comparisons: Sequence[PlanComparison]) -> str:
    """Say which of the plans that were simulated, or measured, alike takes least time, and by how much."""
    reports = [report for comparison in comparisons for report in comparison.reports]
    rivals = [report for report in _alike(reports[0], reports) if report.seconds_per_step and not report.overfull]
    if len({rival.plan for rival in rivals}) < 2:
        return ""
    first, second, *_ = sorted(rivals, key=lambda rival: rival.seconds_per_step or 0.0)
    ahead = (second.seconds_per_step or 0.0) / (first.seconds_per_step or 1.0) - 1
    return (
        f"{first.plan} is the fastest, {column_title(first)}: {seconds(first.seconds_per_step)} a step; {second.plan} "
        f"takes {percent(ahead)} longer"
    )


def _row(comparison: PlanComparison, report: Report, reports: Sequence[Report]) -> list[str]:
    return [
        comparison.plan,
        _told(report, reports),
        seconds(report.seconds_per_step),
        _to_the_best(report, reports),
        "-" if report.samples_per_s is None else number(report.samples_per_s),
        percent(report.communication_share),
        exact_bytes(report.total_bytes),
        _to_the_least(report, reports),
        quantity(max(report.arena_bytes), "B"),
        _memory(report),
        _pairs(comparison, report),
    ]


def _alike(report: Report, reports: Sequence[Report]) -> list[Report]:
    """Return the reports whose seconds may be compared with this one's."""
    same = _of_the_same_work(report, reports)
    return [other for other in same if (other.machine, other.source) == (report.machine, report.source)]


def _of_the_same_work(report: Report, reports: Sequence[Report]) -> list[Report]:
    return [other for other in reports if (other.model, other.batch) == (report.model, report.batch)]


def _told(report: Report, reports: Sequence[Report]) -> str:
    """Say how a report was made; with its settings where another of the same plan was made so, too."""
    same = [other for other in _alike(report, reports) if other.plan == report.plan]
    if len(same) == 1:
        return column_title(report)
    settings = ", ".join(f"{name} {setting}" for name, setting in report.settings.items())
    return f"{column_title(report)} ({settings})" if settings else column_title(report)


def _to_the_best(report: Report, reports: Sequence[Report]) -> str:
    """Write how many times as long as the best a step takes; of those that fit in memory, where any does.

    Nothing is the best that is the only one.
    """
    timed = [rival for rival in _alike(report, reports) if rival.seconds_per_step]
    fitting = [rival.seconds_per_step for rival in timed if not rival.overfull and rival.seconds_per_step]
    best = min(fitting or [rival.seconds_per_step for rival in timed if rival.seconds_per_step], default=None)
    if best is None or report.seconds_per_step is None or len(timed) == 1:
        return "-"
    is_candidate = not fitting or not report.overfull
    return BEST if report.seconds_per_step == best and is_candidate else f"{report.seconds_per_step / best:.4g} x"


def _of_the_run(report: Report, reports: Sequence[Report]) -> str:
    """Write how many times as long as the run of the same plan a simulated step takes, on the same machine if any is.

    "-" of a run, and where there is none.
    """
    runs = [other for other in reports if other.source != "simulator" and other.seconds_per_step]
    run = next((other for other in runs if other.machine == report.machine), runs[0] if runs else None)
    if run is None or run.seconds_per_step is None or report.source != "simulator" or report.seconds_per_step is None:
        return "-"
    return f"{report.seconds_per_step / run.seconds_per_step:.3g} x"


def _to_the_least(report: Report, reports: Sequence[Report]) -> str:
    rivals = _of_the_same_work(report, reports)
    least = min(rival.total_bytes for rival in rivals)
    if len({rival.plan for rival in rivals}) == 1:
        return "-"
    if report.total_bytes == least:
        return BEST
    return f"{report.total_bytes / least:.4g} x" if least else "-"


def _memory(report: Report) -> str:
    if report.overfull:
        return "OUT OF MEMORY"
    device = fullest(report)
    return "-" if device is None or device.capacity_bytes is None else peak_of_capacity(device)


def _pairs(comparison: PlanComparison, report: Report) -> str:
    """Say between how many pairs of workers a report's bytes are those that were planned."""
    planned = comparison.reports[0].planned_bytes
    matrices = (report.bytes, report.planned_bytes)
    unequal = [(u, w) for u, w in comparison.pairs if any(matrix[u][w] != planned[u][w] for matrix in matrices)]
    return equality(comparison.pairs, unequal)
