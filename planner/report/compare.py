"""Compare reports: bytes of every pair of workers, memory, tasks, and a ranking."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from operator import attrgetter
from typing import Any

from rich.table import Table

from planner.grouping import grouped
from planner.report.schema import Matrix, Report, ReportError, TaskSeconds, total
from planner.report.tables import fullest, peak_of_capacity
from tensor_partitioner.display import exact_bytes, grid, number, percent, quantity, seconds, table

PAIRS_SHOWN = 12
_IDENTITY = ("model", "ways", "searcher", "placements")


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """All reports of one plan."""

    plan: str
    reports: tuple[Report, ...]

    @property
    def heading(self) -> str:
        """One line that describes the plan."""
        first = self.reports[0]
        plan = f"{first.model}, {first.searcher}, placements {first.placements}"
        return f"{self.plan}: {plan}, workers {grid(first.ways)}"

    @property
    def columns(self) -> tuple[tuple[str, Matrix], ...]:
        """Titles and matrices: the plan's, then each report's; a report on another plan adds that plan's."""
        planned = self.reports[0].planned_bytes
        result = [("plan", planned)]
        for report in self.reports:
            if report.planned_bytes != planned:
                result.append((f"plan as read by the {report.source}", report.planned_bytes))
            result.append((column_title(report), report.bytes))
        return tuple(result)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Every (sender, receiver)."""
        return tuple(permutations(range(self.reports[0].workers), 2))

    def values(self, pair: tuple[int, int]) -> tuple[int, ...]:
        """Return each column's bytes of one pair."""
        sender, receiver = pair
        return tuple(matrix[sender][receiver] for _, matrix in self.columns)

    @property
    def unequal_pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs whose columns differ."""
        return tuple(pair for pair in self.pairs if len(set(self.values(pair))) > 1)

    @property
    def misallocated(self) -> tuple[Report, ...]:
        """The reports whose arenas differ in size from their own program's prediction."""
        return tuple(r for r in self.reports if r.planned_arena_bytes not in ((), r.arena_bytes))

    @property
    def arenas(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Every worker's arena, by column: the plan's if a report has it, then every report's."""
        planned = next((report.planned_arena_bytes for report in self.reports if report.planned_arena_bytes), ())
        first = (("plan", planned),) if planned else ()
        return (*first, *((column_title(report), report.arena_bytes) for report in self.reports))

    @property
    def unequal_arenas(self) -> tuple[int, ...]:
        """The workers whose arenas should be equal and are not."""
        each = zip(*(arenas for _, arenas in self.arenas), strict=True)
        return tuple(worker for worker, values in enumerate(each) if self.arena_verdict(values) == "UNEQUAL")

    def arena_verdict(self, values: Sequence[int]) -> str:
        """Return the verdict on one worker's arenas; those of programs with different `prefetch` may differ."""
        if len(values) == 1:
            return "-"
        if len(set(values)) == 1:
            return "equal"
        alike = len({report.settings.get("prefetch") for report in self.reports}) == 1
        return "UNEQUAL" if alike or self.misallocated else "other prefetch"


def column_title(report: Report) -> str:
    """Return how a report was obtained, and on which machine."""
    return f"{'simulated' if report.source == 'simulator' else 'measured'} on {report.machine}"


def compare(reports: Sequence[Report]) -> tuple[PlanComparison, ...]:
    """Return the reports grouped by plan, in order of first appearance.

    Raises ReportError if two reports name the same plan file but describe different plans.
    """
    groups = grouped((report.plan, report) for report in reports)
    for first, *others in groups.values():
        for report, field in product(others, _IDENTITY):
            expected, actual = getattr(first, field), getattr(report, field)
            if actual != expected:
                raise ReportError(
                    f"two different plans are both named {report.plan}: "
                    f"{field} is {expected!r} in the report of the {first.source} on {first.machine}, "
                    f"{actual!r} in that of the {report.source} on {report.machine}"
                )
    return tuple(PlanComparison(plan, tuple(group)) for plan, group in groups.items())


def bytes_table(comparison: PlanComparison, every_pair: bool = False) -> Table:
    """Return a table of bytes per step, side by side.

    With few workers, or on request, it has a row per pair; otherwise a row per sender and one for each unequal pair.
    """
    columns, shown, rows = comparison.columns, comparison.pairs, []
    if not every_pair and len(comparison.pairs) > PAIRS_SHOWN:
        shown = comparison.unequal_pairs
        for sender in range(comparison.reports[0].workers):
            sums = [exact_bytes(sum(matrix[sender])) for _, matrix in columns]
            rows.append([f"from {sender}", *sums, equality([p for p in comparison.pairs if p[0] == sender], shown)])
    for pair in shown:
        values = comparison.values(pair)
        verdict = "equal" if len(set(values)) == 1 else "UNEQUAL"
        rows.append([f"{pair[0]} to {pair[1]}", *map(exact_bytes, values), verdict])
    totals = [exact_bytes(total(matrix)) for _, matrix in columns]
    rows.append(["total", *totals, equality(comparison.pairs, comparison.unequal_pairs)])
    return table("bytes per step", ["worker to worker", *(title for title, _ in columns), "verdict"], rows)


def memory_table(comparison: PlanComparison) -> Table:
    """Return a table of each worker's arena as planned and as in every report."""
    rows = []
    for worker in range(comparison.reports[0].workers):
        values = [arenas[worker] for _, arenas in comparison.arenas]
        rows.append([str(worker), *map(exact_bytes, values), comparison.arena_verdict(values)])
    return table("arena bytes", ["worker", *(title for title, _ in comparison.arenas), "verdict"], rows)


def notes(comparison: PlanComparison) -> list[str]:
    """Return sentences about what the tables omit: devices out of memory, failed checks, a single report."""
    lines = []
    for report in comparison.reports:
        problems = [f"{device} is out of memory" for device in report.overfull]
        if report in comparison.misallocated:
            problems.append("arenas differ from the predicted size")
        if report.check is not None and not report.check.passed:
            problems.append(f"differs from one worker at {report.check.worst_tensor}")
        lines += [f"{comparison.plan}: {what}, {column_title(report)}" for what in problems]
    if len(comparison.reports) == 1:
        lines.append(f"{comparison.plan}: only one report, compared with its plan")
    return lines


def conclusion(comparison: PlanComparison) -> str:
    """Return a sentence about the accuracy of the first prediction that has a run on its machine; "" without any."""
    predictions = {r.machine: r.seconds_per_step for r in comparison.reports if r.source == "simulator"}
    for report in comparison.reports:
        predicted = predictions.get(report.machine)
        if report.source == "simulator" or not predicted or report.seconds_per_step is None:
            continue
        pairs, ratio = len(comparison.pairs), report.seconds_per_step / predicted
        equal = pairs - len(comparison.unequal_pairs)
        return (
            f"{comparison.plan}: a step was predicted to take {seconds(predicted)} on {report.machine} and took "
            f"{seconds(report.seconds_per_step)}, {ratio:.3g} times as long; between {equal} "
            f"of {pairs} pairs of workers exactly the planned bytes were moved"
        )
    return ""


def equality(pairs: Sequence[tuple[int, int]], unequal: Sequence[tuple[int, int]]) -> str:
    """Return how many of some pairs are equal, or how many are not."""
    bad = len(set(pairs) & set(unequal))
    return f"{bad} of {len(pairs)} UNEQUAL" if bad else f"{len(pairs)} of {len(pairs)} equal"


LISTED = 20
Pair = tuple[float, float]


def task_tables(comparison: PlanComparison) -> Iterator[Table]:
    """Yield tables of a prediction's tasks beside a measurement's, each the mean over workers.

    Raises ReportError unless both a simulator's and an executor's report have tasks.
    """
    predicted, measured = (_only(comparison, source) for source in ("simulator", "executor"))
    titles = column_title(predicted), column_title(measured)
    workers = predicted.workers
    for what, field in (("kind", "kind"), ("class of kernels", "category")):
        pairs = _paired(predicted, measured, attrgetter(field))
        rows = [[str(key), *seconds_row(pair, workers)] for key, pair in pairs.items() if key]
        yield table(f"{comparison.plan}: seconds of a worker by {what}", [what, *titles, "difference", "ratio"], rows)
    tasks = _paired(predicted, measured, attrgetter("task", "kind"))
    names = {(task.task, task.kind): task.what for task in (*predicted.tasks, *measured.tasks)}
    far = sorted(tasks, key=lambda key: -abs(tasks[key][1] - tasks[key][0]))[:LISTED]
    rows = [[*map(str, key), names[key], *seconds_row(tasks[key], workers)] for key in far]
    yield table(
        f"{comparison.plan}: the tasks that differ most", ["task", "kind", "what", *titles, "difference", "ratio"], rows
    )


def _only(comparison: PlanComparison, source: str) -> Report:
    """Return the last report of a source with tasks; preferably one for a machine with measurements."""
    reports = [report for report in comparison.reports if report.source == source and report.tasks]
    measured_on = {report.machine for report in comparison.reports if report.source == "executor"}
    if not reports:
        command = "simulate" if source == "simulator" else "execute"
        raise ReportError(
            f"{comparison.plan}: no report of the {source} has tasks; create one with {command} --tasks --json"
        )
    return next((report for report in reports if report.machine in measured_on), reports[-1])


def _paired(predicted: Report, measured: Report, group: Callable[[TaskSeconds], Any]) -> Mapping[Any, Pair]:
    sums: defaultdict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for column, report in enumerate((predicted, measured)):
        for task in report.tasks:
            sums[group(task)][column] += task.seconds
    return {key: (pair[0], pair[1]) for key, pair in sums.items()}


def seconds_row(pair: Pair, workers: int) -> tuple[str, str, str, str]:
    """Return a worker's predicted and measured seconds, their difference and their ratio, as text."""
    predicted, measured = (value / workers for value in pair)
    sign = "-" if measured < predicted else "+"
    ratio = f"{measured / predicted:.3g}" if predicted else "-"
    return seconds(predicted), seconds(measured), sign + seconds(abs(measured - predicted)), ratio


BEST = "best"
SECONDS, OF_THE_RUN = "seconds per step", "of the run"
COLUMNS = (
    *("plan", "", SECONDS, "to the best", "samples/s", "exposed", "bytes per step", "to the least"),
    *("largest arena", "memory", "pairs of workers"),
)


def ranking_table(comparisons: Sequence[PlanComparison]) -> Table:
    """Return a table with a row per report; ratios are to the best of the same work, machine and kind.

    With both simulations and runs, it also has the ratio of a simulation to the run of the same plan.
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
    """Return a sentence about the fastest plan among comparable reports, and its lead.

    "" if there are fewer than two.
    """
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
    """Return the reports whose seconds are comparable with this one's."""
    same = _of_the_same_work(report, reports)
    return [other for other in same if (other.machine, other.source) == (report.machine, report.source)]


def _of_the_same_work(report: Report, reports: Sequence[Report]) -> list[Report]:
    return [other for other in reports if (other.model, other.batch) == (report.model, report.batch)]


def _told(report: Report, reports: Sequence[Report]) -> str:
    """Return how a report was obtained, with its settings if another report of the plan was obtained the same way."""
    same = [other for other in _alike(report, reports) if other.plan == report.plan]
    if len(same) == 1:
        return column_title(report)
    settings = ", ".join(f"{name} {setting}" for name, setting in report.settings.items())
    return f"{column_title(report)} ({settings})" if settings else column_title(report)


def _to_the_best(report: Report, reports: Sequence[Report]) -> str:
    """Return the ratio of a step to the best one, among reports that fit in memory if any does.

    A single report has no ratio.
    """
    timed = [rival for rival in _alike(report, reports) if rival.seconds_per_step]
    fitting = [rival.seconds_per_step for rival in timed if not rival.overfull and rival.seconds_per_step]
    best = min(fitting or [rival.seconds_per_step for rival in timed if rival.seconds_per_step], default=None)
    if best is None or report.seconds_per_step is None or len(timed) == 1:
        return "-"
    is_candidate = not fitting or not report.overfull
    return BEST if report.seconds_per_step == best and is_candidate else f"{report.seconds_per_step / best:.4g} x"


def _of_the_run(report: Report, reports: Sequence[Report]) -> str:
    """Return the ratio of a simulated step to a run of the same plan, preferably on the same machine.

    "-" for a run, and if there is none.
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
    """Return for how many pairs of workers a report's bytes are as planned."""
    planned = comparison.reports[0].planned_bytes
    matrices = (report.bytes, report.planned_bytes)
    unequal = [(u, w) for u, w in comparison.pairs if any(matrix[u][w] != planned[u][w] for matrix in matrices)]
    return equality(comparison.pairs, unequal)
