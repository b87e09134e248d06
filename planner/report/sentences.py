"""What a report says in a sentence, and what would help where memory is too small."""

from __future__ import annotations

from planner.report.schema import DeviceMemory, Report
from planner.report.tables import fullest, peak_of_capacity
from tensor_partitioner.display import exact_bytes, number, percent, quantity, seconds

SHARED_OUT = ("weights", "optimizer state", "gradients")
"""What more workers, or ZeRO, divide; the rest is a matter of the batch."""

OF_THE_BATCH = ("inputs", "activations", "fetches", "partials", "staging", "workspace")


def finding(report: Report) -> str:
    """Say what a simulation or a run has shown."""
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
        return "whether it fits is not known"
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
    """Say by how much the fullest of the devices that are too small is too small, and what would help."""
    device = max((memory for memory in report.devices if memory.device in report.overfull), key=_excess)
    needed, there = quantity(device.peak_bytes, "B"), quantity(device.capacity_bytes or 0, "B")
    by = quantity(_excess(device), "B")
    return f"{device.device} needs {needed} and has {there}, {by} too little; {remedy(report, device)} would help"


def remedy(report: Report, device: DeviceMemory) -> str:
    """Say what would make less of what fills a device most."""
    kept, passing = (sum(device.by_kind.get(kind, 0) for kind in kinds) for kinds in (SHARED_OUT, OF_THE_BATCH))
    of_batch = "a smaller batch or --micro-batches, --recompute"
    of_weights = f"more workers, or sharing state out (--parallel dp={max(2, report.workers)},zero=3)"
    first, second = (of_weights, of_batch) if kept > passing else (of_batch, of_weights)
    return f"{first}, or {second}"


def _excess(device: DeviceMemory) -> int:
    return device.peak_bytes - (device.capacity_bytes or 0)
