"""Tables of simulator and executor reports, and a one-sentence result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.table import Table

from planner.report.schema import Bottleneck, DeviceMemory, Matrix, Report, Spending, total
from tensor_partitioner import display
from tensor_partitioner.display import exact_bytes, facts, grid, number, percent, quantity, seconds, table

WIDEST_MATRIX = 16
LINKS_SHOWN = 8
KINDS_SHOWN = 4
RUNS_SHOWN = 4

Rows = Iterator[tuple[str, str]]
Row = tuple[list[int], list[str]]
"""A row of a table: its workers, and its other cells."""


@display.tables.register
def tables(report: Report) -> tuple[Table, ...]:
    """Return the tables of a report. Only a simulator's report has links and devices."""
    if report.source != "simulator":
        return (summary(report), byte_matrix(report.bytes))
    spent = (spending(report),) if report.spending else ()
    together = (collectives(report),) if report.collectives else ()
    return (summary(report), *spent, devices(report), byte_matrix(report.bytes), *together, links(report))


def byte_matrix(matrix: Matrix) -> Table:
    """Return the table of bytes from each worker (row) to each (column).

    Beyond 16 workers it has only sums per worker.
    """
    workers = range(len(matrix))
    sent = [sum(row) for row in matrix]
    received = [sum(row[w] for row in matrix) for w in workers]
    if len(matrix) > WIDEST_MATRIX:
        sums = merged([([w], [exact_bytes(sent[w]), exact_bytes(received[w])]) for w in workers])
        return table(
            "bytes per step", ["worker", "sent", "received"], [[spans(workers), *cells] for workers, cells in sums]
        )
    columns = ["from worker", *(f"to {w}" for w in workers), "sent"]
    rows = [[str(u), *("-" if u == w else exact_bytes(matrix[u][w]) for w in workers)] for u in workers]
    rows = [[*row, exact_bytes(sent[u])] for u, row in enumerate(rows)]
    rows.append(["received", *map(exact_bytes, received), exact_bytes(total(matrix))])
    return table("bytes per step", columns, rows)


def summary(report: Report) -> Table:
    """Return the summary of a simulation or a run, without the matrix."""
    kind = "simulated" if report.source == "simulator" else "measured"
    groups = (_identity, _time, _bottleneck, _memory, _training)
    rows = [row for group in groups for row in group(report)]
    return facts(f"{kind}: {report.plan}", rows)


def collectives(report: Report) -> Table:
    """Return the table of collectives by algorithm, and of messages between pairs."""
    rows = [
        [use.operation, use.algorithm, str(use.count), exact_bytes(use.nbytes), exact_bytes(use.wire_bytes)]
        for use in report.collectives
    ]
    messages = report.total_bytes - sum(use.nbytes for use in report.collectives)
    if messages:
        rows.append(["messages", "-", "-", exact_bytes(messages), exact_bytes(messages)])
    columns = ["operation", "algorithm", "times", "bytes between pairs", "bytes on the wire"]
    return table("collectives", columns, rows)


def links(report: Report) -> Table:
    """Return the table of a simulation's busiest links, most used first."""
    busiest = sorted(report.links, key=lambda link: (-link.utilisation, link.name))[:LINKS_SHOWN]
    title = f"busiest {len(busiest)} of {len(report.links)} link directions"
    rows = [[link.name, exact_bytes(link.nbytes), percent(link.utilisation)] for link in busiest]
    return table(title, ["link", "bytes per step", "utilisation"], rows)


def devices(report: Report) -> Table:
    """Return the table of device memory: the peak, whether it fits, and its largest parts."""
    rows, names = list[Row](), {device.workers[0]: device.device for device in report.devices}
    for device in report.devices:
        capacity = "-" if device.capacity_bytes is None else quantity(device.capacity_bytes, "B")
        filled = sorted(device.by_kind.items(), key=lambda item: -item[1])[:KINDS_SHOWN]
        largest = ", ".join(f"{kind} {quantity(nbytes, 'B')}" for kind, nbytes in filled)
        peak = quantity(device.peak_bytes, "B")
        rows.append((list(device.workers), [peak, capacity, device.verdict, largest]))
    columns = ["device", "workers", "peak", "capacity", "verdict", "most of the peak"]
    return table("memory", columns, [[names[workers[0]], spans(workers), *cells] for workers, cells in merged(rows)])


def merged(rows: Sequence[Row]) -> list[Row]:
    """Merge rows that differ only in their workers, if there are more than 16."""
    if len(rows) <= WIDEST_MATRIX:
        return list(rows)
    alike: dict[tuple[str, ...], list[int]] = {}
    for workers, cells in rows:
        alike.setdefault(tuple(cells), []).extend(workers)
    return [(workers, list(cells)) for cells, workers in alike.items()]


def spans(workers: Sequence[int]) -> str:
    """Return workers as runs of numbers: the first few runs, and the number of workers.

    >>> spans([0, 1, 2, 5]), spans(range(0, 64, 8))
    ('0-2, 5', '0, 8, 16 ... (8)')
    """
    runs: list[list[int]] = []
    for worker in workers:
        if runs and worker == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], worker]
        else:
            runs.append([worker])
    named = ", ".join("-".join(map(str, run)) for run in runs[: len(runs) if len(runs) <= RUNS_SHOWN else 3])
    return named if len(runs) <= RUNS_SHOWN else f"{named} ... ({len(workers)})"


def _identity(report: Report) -> Rows:
    yield "model", report.model if report.batch is None else f"{report.model}, batch {report.batch}"
    yield "plan", f"{report.searcher}, placements {report.placements}"
    yield "workers", grid(report.ways)
    if report.classes is not None and report.classes < report.workers:
        yield "simulated", f"{report.classes} of them; every other worker is equivalent to one of these"
    yield "machine", f"{report.machine}: {report.hardware}"
    if report.settings:
        yield "settings", ", ".join(f"{name} {value}" for name, value in report.settings.items())


def _time(report: Report) -> Rows:
    yield "seconds per step", seconds(report.seconds_per_step)
    if report.seconds_without_communication is not None:
        yield "without communication", seconds(report.seconds_without_communication)
        share = percent(report.communication_share)
        yield "exposed communication", f"{seconds(report.exposed_seconds)}, {share} of the step"
    if report.samples_per_s is not None:
        yield "samples per second", number(report.samples_per_s)
    equal = "equal to the plan" if report.bytes == report.planned_bytes else "NOT EQUAL to the plan"
    yield "bytes per step", f"{exact_bytes(report.total_bytes)} ({equal})"
    if report.wire_bytes is not None and report.wire_bytes != report.total_bytes:
        yield "bytes on the wire", exact_bytes(report.wire_bytes)


def busiest(report: Report) -> tuple[str, float] | None:
    """Return what is busy longest in a simulated step (a worker or a link), and the fraction of the step."""
    if not report.seconds_per_step:
        return None
    shares = [(f"computing on worker {w}", s / report.seconds_per_step) for w, s in enumerate(report.compute_seconds)]
    shares += [(f"link {link.name}", link.utilisation) for link in report.links]
    return max(shares, key=lambda entry: entry[1], default=None)


def spending(report: Report) -> Table:
    """Return the table of how each worker spends the step. All columns but the last sum to it."""
    names = [name for name in Spending.__struct_fields__ if name != "worker"]
    rows = [([spent.worker], [seconds(getattr(spent, name)) for name in names]) for spent in report.spending]
    columns = ["worker", *(name.removesuffix("_s") for name in names)]
    return table("time of each worker", columns, [[spans(workers), *cells] for workers, cells in merged(rows)])


def _bottleneck(report: Report) -> Rows:
    """Yield the bottleneck of each phase; without phases, what is busy for most of the step."""
    for bottleneck in report.bottlenecks:
        yield f"bottleneck of {bottleneck.phase}", _held_up(bottleneck)
    if report.bottlenecks or report.source != "simulator" or (use := busiest(report)) is None:
        return
    name, share = use
    if share < 0.5:
        yield "bottleneck", f"waiting: nothing is busy for half of the step, {name} for {percent(share)}"
    else:
        yield "bottleneck", f"{name}, busy for {percent(share)} of the step"


def _held_up(by: Bottleneck) -> str:
    where = f" on {by.name}" if by.name else ""
    return f"{by.kind}{where}: {seconds(by.seconds)} of {seconds(by.end_s - by.begin_s)}, worker {by.worker}"


def fullest(report: Report) -> DeviceMemory | None:
    """Return the device whose memory is used most, relative to its capacity."""
    return max(
        report.devices,
        key=lambda memory: (memory.peak_bytes / (memory.capacity_bytes or math.inf), memory.peak_bytes),
        default=None,
    )


def peak_of_capacity(device: DeviceMemory) -> str:
    """Return the peak of a device with known capacity as text, such as `3.2 GB of 12 GB`."""
    return f"{quantity(device.peak_bytes, 'B')} of {quantity(device.capacity_bytes or 0, 'B')}"


def _memory(report: Report) -> Rows:
    yield "largest arena", quantity(max(report.arena_bytes), "B")
    if report.overfull:
        yield "OUT OF MEMORY on", ", ".join(report.overfull)
    elif (device := fullest(report)) is not None and device.capacity_bytes:
        yield "fits", f"at most {peak_of_capacity(device)}, in {device.device}"
    for item in report.outside_arena:
        size = "unknown size" if item.nbytes is None else quantity(item.nbytes, "B")
        yield "outside the arena", f"{item.what}: {size}"


def _training(report: Report) -> Rows:
    if report.losses:
        first, last = (("not finite" if x is None else f"{x:.6g}") for x in (report.losses[0], report.losses[-1]))
        yield "loss", f"{first} -> {last} in {len(report.losses)} steps"
    for name, share in (("accuracy", report.accuracy), ("held-out accuracy", report.eval_accuracy)):
        if share is not None:
            yield name, percent(share)
    if report.eval_loss is not None:
        yield "held-out loss", f"{report.eval_loss:.6g}, {report.eval_loss / math.log(2):.4g} bits"
    if (check := report.check) is not None:
        verdict = "passed:" if check.passed else f"FAILED: {check.failed} of"
        difference = "not finite" if check.worst_difference is None else f"{check.worst_difference:.2g}"
        text = f"{verdict} {check.tensors} tensors, worst {check.worst_tensor} {difference}"
        yield "check against one worker", f"{text} (tolerance {check.tolerance:.2g})"
        if check.undecided:
            yield "", f"{check.undecided} more differ within rounding"


SHARED_OUT = ("weights", "optimizer state", "gradients")
"""Kinds of memory that more workers, or ZeRO, divide. The rest depends on the batch."""

OF_THE_BATCH = ("inputs", "activations", "fetches", "partials", "staging", "workspace")


def finding(report: Report) -> str:
    """Return the result of a simulation or a run as a sentence."""
    return _simulated(report) if report.source == "simulator" else _executed(report)


def _simulated(report: Report) -> str:
    what = f"{report.model} on {report.machine} with {report.workers} worker{'s' * (report.workers != 1)}"
    parts = [f"{what}: a step, simulated message by message, takes {_pace(report)}"]
    if report.communication_share is not None:
        parts.append(f"{percent(report.communication_share)} of it exposed communication")
    return f"{', '.join(parts)}; {_fit(report)}."


def _fit(report: Report) -> str:
    if report.overfull:
        return f"it does not fit: {lacking(report)}"
    device = fullest(report)
    if device is None or device.capacity_bytes is None:
        return "whether it fits is unknown"
    return f"it fits, with at most {peak_of_capacity(device)}"


def _executed(report: Report) -> str:
    ranks = f"{report.workers} rank{'s' * (report.workers != 1)} of {report.machine}"
    parts = [f"{report.model} on {ranks}: a step took {_pace(report)}"]
    finite = [loss for loss in report.losses if loss is not None]
    if len(finite) > 1:
        parts.append(f"the loss went from {finite[0]:.4g} to {finite[-1]:.4g} in {len(report.losses)} steps")
    if report.check is not None:
        parts.append("trained as one worker does" if report.check.passed else "NOT trained as one worker does")
    equal = "exactly the planned bytes" if report.bytes == report.planned_bytes else "OTHER bytes than planned"
    return f"{'; '.join(parts)}; {equal} moved, {exact_bytes(report.total_bytes)} a step."


def _pace(report: Report) -> str:
    rate = "" if report.samples_per_s is None else f" ({number(report.samples_per_s)} samples/s)"
    return f"{seconds(report.seconds_per_step)}{rate}"


def lacking(report: Report) -> str:
    """Return by how much the worst of the devices that are too small falls short, and what would help."""
    device = max((memory for memory in report.devices if memory.device in report.overfull), key=_excess)
    needed, there = quantity(device.peak_bytes, "B"), quantity(device.capacity_bytes or 0, "B")
    by = quantity(_excess(device), "B")
    return f"{device.device} needs {needed} but has {there}, {by} too little; try {remedy(report, device)}"


def remedy(report: Report, device: DeviceMemory) -> str:
    """Return what would reduce the largest part of a device's memory."""
    kept, passing = (sum(device.by_kind.get(kind, 0) for kind in kinds) for kinds in (SHARED_OUT, OF_THE_BATCH))
    of_batch = "a smaller batch or --micro-batches, --recompute"
    of_weights = f"more workers, or sharded state (--parallel dp={max(2, report.workers)},zero=3)"
    first, second = (of_weights, of_batch) if kept > passing else (of_batch, of_weights)
    return f"{first}, or {second}"


def _excess(device: DeviceMemory) -> int:
    return device.peak_bytes - (device.capacity_bytes or 0)
