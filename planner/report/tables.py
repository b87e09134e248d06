"""Tables for people, built from a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.table import Table

from planner.report.schema import Matrix, Report, total

WIDTH = 160
WIDEST_MATRIX = 16
LINKS_SHOWN = 8
TEXT_WIDTH = 52  # beside a name, it fits a terminal of 80 columns
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Build a plain table: the first column to the left, the others to the right."""
    result = Table(*columns, title=title, title_justify="left", title_style="bold")
    for column in result.columns[1:]:
        column.justify = "right"
    for row in rows:
        result.add_row(*row)
    return result


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Build a table of names and values."""
    result = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    result.add_column(no_wrap=True)
    result.add_column(max_width=TEXT_WIDTH)
    for name, value in rows:
        result.add_row(name, value)
    return result


def quantity(value: float, unit: str) -> str:
    """Write a value with a decimal prefix and three digits, as in `35.9 GB`."""
    for factor, prefix in _UNITS:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def seconds(value: float | None) -> str:
    """Write a duration in the unit that suits it; `-` where there is none."""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value * 1e9:.3g} ns"


def exact_bytes(value: int) -> str:
    """Write bytes to the last digit, since they are compared to the last digit."""
    return f"{value:,}"


def grid(ways: Sequence[int]) -> str:
    """Write the number of workers and how they are divided, as in `8 as 4 x 2`."""
    return f"{math.prod(ways)} as {' x '.join(map(str, ways))}" if len(ways) > 1 else str(math.prod(ways))


def percent(value: float | None) -> str:
    """Write a share of one as a percentage; `-` where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def byte_matrix(matrix: Matrix, title: str = "bytes per step") -> Table:
    """Show the bytes from each worker (row) to each (column); beyond 16 workers only what each sends and receives."""
    workers = range(len(matrix))
    sent = [sum(row) for row in matrix]
    received = [sum(row[w] for row in matrix) for w in workers]
    if len(matrix) > WIDEST_MATRIX:
        rows = [[str(w), exact_bytes(sent[w]), exact_bytes(received[w])] for w in workers]
        return table("bytes per step", ["worker", "sent", "received"], rows)
    columns = ["from worker", *(f"to {w}" for w in workers), "sent"]
    rows = [[str(u), *("-" if u == w else exact_bytes(matrix[u][w]) for w in workers)] for u in workers]
    rows = [[*row, exact_bytes(sent[u])] for u, row in enumerate(rows)]
    rows.append(["received", *map(exact_bytes, received), exact_bytes(total(matrix))])
    return table(title, columns, rows)


def summary(report: Report) -> Table:
    """Show what a simulation or a run found, without the matrix."""
    kind = "simulated" if report.source == "simulator" else "measured"
    rows = (*_identity(report), *_time(report), *_memory(report), *_training(report))
    return facts(f"{kind}: {report.plan}", rows)


def links(report: Report) -> Table:
    """Show the busiest links of a simulation, most used first."""
    busiest = sorted(report.links, key=lambda link: (-link.utilisation, link.name))[:LINKS_SHOWN]
    title = f"busiest {len(busiest)} of {len(report.links)} link directions"
    rows = [[link.name, exact_bytes(link.nbytes), percent(link.utilisation)] for link in busiest]
    return table(title, ["link", "bytes per step", "utilisation"], rows)


def devices(report: Report) -> Table:
    """Show each device's memory peak and whether it fits."""
    rows = []
    for device in report.devices:
        capacity = "-" if device.capacity_bytes is None else quantity(device.capacity_bytes, "B")
        largest = ", ".join(f"{use.name} {quantity(use.nbytes, 'B')}" for use in device.largest[:1])
        peak = quantity(device.peak_bytes, "B")
        rows.append([device.device, _ranks(device.workers), peak, capacity, device.verdict, largest])
    columns = ["device", "workers", "peak", "capacity", "verdict", "largest at the peak"]
    return table("memory", columns, rows)


def _identity(report: Report) -> list[tuple[str, str]]:
    rows = [
        ("model", report.model if report.batch is None else f"{report.model}, batch {report.batch}"),
        ("plan", f"{report.searcher}, placements {report.placements}"),
        ("workers", grid(report.ways)),
        ("machine", f"{report.machine}: {report.hardware}"),
    ]
    if report.settings:
        rows.append(("settings", ", ".join(f"{name} {value}" for name, value in report.settings.items())))
    return rows


def _time(report: Report) -> list[tuple[str, str]]:
    rows = [("seconds per step", seconds(report.seconds_per_step))]
    if report.seconds_without_communication is not None:
        rows.append(("without communication", seconds(report.seconds_without_communication)))
        rows.append(("share of communication", percent(report.communication_share)))
    if report.samples_per_s is not None:
        rows.append(("samples per second", f"{report.samples_per_s:.4g}"))
    equal = "equal to the plan" if report.bytes == report.planned_bytes else "NOT EQUAL to the plan"
    rows.append(("bytes per step", f"{exact_bytes(report.total_bytes)} ({equal})"))
    return rows


def _memory(report: Report) -> list[tuple[str, str]]:
    rows = [("largest arena", quantity(max(report.arena_bytes), "B"))]
    full = [device.device for device in report.devices if device.verdict == "out of memory"]
    if full:
        rows.append(("OUT OF MEMORY on", ", ".join(full)))
    for item in report.outside_arena:
        size = "unknown size" if item.nbytes is None else quantity(item.nbytes, "B")
        rows.append(("outside the arena", f"{item.what}: {size}"))
    return rows


def _training(report: Report) -> list[tuple[str, str]]:
    rows = []
    if report.losses:
        first, last = (("not finite" if x is None else f"{x:.6g}") for x in (report.losses[0], report.losses[-1]))
        rows.append(("loss", f"{first} -> {last} in {len(report.losses)} steps"))
    for name, share in (("accuracy", report.accuracy), ("held-out accuracy", report.eval_accuracy)):
        if share is not None:
            rows.append((name, percent(share)))
    if report.check is not None:
        verdict = "passed:" if report.check.passed else f"FAILED: {report.check.failed} of"
        worst = report.check.worst_difference
        difference = "not finite" if worst is None else f"{worst:.2g}"
        text = f"{verdict} {report.check.tensors} tensors, worst {report.check.worst_tensor} {difference}"
        rows.append(("check against one worker", f"{text} (tolerance {report.check.tolerance:.2g})"))
    return rows


def _ranks(workers: Sequence[int]) -> str:
    return ", ".join(map(str, workers))
