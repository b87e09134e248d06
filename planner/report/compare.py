"""Reports side by side: the bytes of plan, simulation and run per pair of workers, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from rich.table import Table

from planner.report.schema import Matrix, Report, ReportError, total
from tensor_partitioner.display import exact_bytes, grid, seconds, table

PAIRS_SHOWN = 12
_IDENTITY = ("model", "ways", "searcher", "placements")


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """Every report of one plan."""

    plan: str
    reports: tuple[Report, ...]

    @property
    def heading(self) -> str:
        """What was planned, in one line."""
        first = self.reports[0]
        plan = f"{first.model}, {first.searcher}, placements {first.placements}"
        return f"{self.plan}: {plan}, workers {grid(first.ways)}"

    @property
    def columns(self) -> tuple[tuple[str, Matrix], ...]:
        """Titles and matrices: the plan's, then each report's; one that read another plan adds its own plan's."""
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
        """Each column's bytes of one pair."""
        sender, receiver = pair
        return tuple(matrix[sender][receiver] for _, matrix in self.columns)

    @property
    def unequal_pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs whose columns differ."""
        return tuple(pair for pair in self.pairs if len(set(self.values(pair))) > 1)

    @property
    def misallocated(self) -> tuple[Report, ...]:
        """The reports whose arenas are not as large as their own program predicted."""
        return tuple(r for r in self.reports if r.planned_arena_bytes not in ((), r.arena_bytes))

    @property
    def arenas(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Every worker's arena, by column: the plan's where a report tells it, then every report's."""
        planned = next((report.planned_arena_bytes for report in self.reports if report.planned_arena_bytes), ())
        first = (("plan", planned),) if planned else ()
        return (*first, *((column_title(report), report.arena_bytes) for report in self.reports))

    @property
    def unequal_arenas(self) -> tuple[int, ...]:
        """The workers whose arenas should be equal and are not."""
        each = zip(*(arenas for _, arenas in self.arenas), strict=True)
        return tuple(worker for worker, values in enumerate(each) if self.arena_verdict(values) == "UNEQUAL")

    def arena_verdict(self, values: Sequence[int]) -> str:
        """Say of one worker's arenas whether they are equal; those of programs of unlike `prefetch` need not be."""
        if len(values) == 1:
            return "-"
        if len(set(values)) == 1:
            return "equal"
        alike = len({report.settings.get("prefetch") for report in self.reports}) == 1
        return "UNEQUAL" if alike or self.misallocated else "other prefetch"


def column_title(report: Report) -> str:
    """Say in two words how a report was made and where."""
    return f"{'simulated' if report.source == 'simulator' else 'measured'} on {report.machine}"


def compare(reports: Sequence[Report]) -> tuple[PlanComparison, ...]:
    """Group reports by plan, in order of first appearance.

    Raises `ReportError` where two reports name the same plan file but describe different plans.
    """
    groups: dict[str, list[Report]] = {}
    for report in reports:
        group = groups.setdefault(report.plan, [])
        for field in _IDENTITY:
            if group and getattr(report, field) != getattr(group[0], field):
                actual, expected = getattr(report, field), getattr(group[0], field)
                raise ReportError(
                    f"two different plans are both named {report.plan}: "
                    f"{field} is {expected!r} in the report of the {group[0].source} on {group[0].machine}, "
                    f"{actual!r} in that of the {report.source} on {report.machine}"
                )
        group.append(report)
    return tuple(PlanComparison(plan, tuple(group)) for plan, group in groups.items())


def bytes_table(comparison: PlanComparison, every_pair: bool = False) -> Table:
    """Show bytes per step side by side.

    With few workers, or on request, a row per pair; else a row per sender and a row for each unequal pair.
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
    """Show each worker's arena as planned and as every report found it."""
    rows = []
    for worker in range(comparison.reports[0].workers):
        values = [arenas[worker] for _, arenas in comparison.arenas]
        rows.append([str(worker), *map(exact_bytes, values), comparison.arena_verdict(values)])
    return table("arena bytes", ["worker", *(title for title, _ in comparison.arenas), "verdict"], rows)


def notes(comparison: PlanComparison) -> list[str]:
    """Say in sentences what the tables do not: devices that are out of memory, failed checks, a lone report."""
    lines = []
    for report in comparison.reports:
        problems = [f"{device} is out of memory" for device in report.overfull]
        if report in comparison.misallocated:
            problems.append("arenas are not as large as predicted")
        if report.check is not None and not report.check.passed:
            problems.append(f"differs from one worker at {report.check.worst_tensor}")
        lines += [f"{comparison.plan}: {what}, {column_title(report)}" for what in problems]
    if len(comparison.reports) == 1:
        lines.append(f"{comparison.plan}: one report only, compared with its plan")
    return lines


def conclusion(comparison: PlanComparison) -> str:
    """Say in a sentence how near a prediction came, on the first machine that has one and a run; else nothing."""
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
            f"of {pairs} pairs of workers exactly the planned bytes moved"
        )
    return ""


def equality(pairs: Sequence[tuple[int, int]], unequal: Sequence[tuple[int, int]]) -> str:
    """Say how many of some pairs are equal, or how many are not."""
    bad = len(set(pairs) & set(unequal))
    return f"{bad} of {len(pairs)} UNEQUAL" if bad else f"{len(pairs)} of {len(pairs)} equal"
