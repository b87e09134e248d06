"""Tables of what the simulator and the executor report."""

from __future__ import annotations

from rich.table import Table

import display
from display import exact_bytes, facts, grid, percent, quantity, seconds, table
from planner.report.schema import Matrix, Report, total

WIDEST_MATRIX = 16
LINKS_SHOWN = 8
KINDS_SHOWN = 4


@display.tables.register
def tables(report: Report) -> tuple[Table, ...]:
    """Show a report; links and devices are what a simulator knows."""
    predicted = (devices(report), links(report)) if report.source == "simulator" else ()
    return (summary(report), *predicted[:1], byte_matrix(report.bytes), *predicted[1:])


def byte_matrix(matrix: Matrix) -> Table:
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
    return table("bytes per step", columns, rows)


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
    """Show the most that each device's memory must hold, whether it fits, and what fills it."""
    rows = []
    for device in report.devices:
        capacity = "-" if device.capacity_bytes is None else quantity(device.capacity_bytes, "B")
        filled = sorted(device.by_kind.items(), key=lambda item: -item[1])[:KINDS_SHOWN]
        largest = ", ".join(f"{kind} {quantity(nbytes, 'B')}" for kind, nbytes in filled)
        peak = quantity(device.peak_bytes, "B")
        rows.append([device.device, ", ".join(map(str, device.workers)), peak, capacity, device.verdict, largest])
    columns = ["device", "workers", "peak", "capacity", "verdict", "most of the peak"]
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
        if report.check.undecided:
            rows.append(("", f"{report.check.undecided} more differ by what rounding alone does"))
    return rows
