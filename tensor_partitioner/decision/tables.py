"""Tables of predicted steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from rich.table import Table

from simulator.projection.result import Projection
from tensor_partitioner import display

LEAST_SHARE = 1e-4
"""Causes below this share of a step are not shown."""


def _bytes(nbytes: float) -> str:
    return display.quantity(nbytes, "B")


@display.tables.register
def _(shown: Projection) -> Sequence[Table]:
    """Show a step: its key figures, its seconds by cause, and its memory line by line."""
    tables = step_table(shown), shares_table(shown.shares, shown.seconds), sent_table(shown.sent_bytes)
    return *tables, memory_table(shown)


def step_table(step: Projection) -> Table:
    """Return the table of a step's key figures."""
    margin = f"{_bytes(step.margin_bytes)} to spare" if step.fits else f"{_bytes(-step.margin_bytes)} too much"
    rows = (
        ("a step", display.seconds(step.seconds)),
        ("samples/s", display.number(step.samples_per_s)),
        (f"MFU ({step.dtype})", display.percent(step.utilisation)),
        ("Tflop/s a device", f"{step.flop_per_s_per_device / 1e12:.4g}"),
        ("devices", str(step.devices)),
        ("micro-batches", str(step.micro_batches)),
        ("memory", f"{_bytes(step.needed_bytes)} of {_bytes(step.capacity_bytes)}, {margin}"),
        ("step / ideal compute", f"{step.roof_factor:.3g}"),
    )
    return display.facts("projected", rows)


def shares_table(shares: Mapping[str, float], seconds: float) -> Table:
    """Return the table of a step's seconds by cause."""
    told = ((cause, s) for cause, s in shares.items() if s > LEAST_SHARE * seconds)
    rows = ((cause, display.seconds(s), display.percent(s / seconds)) for cause, s in told)
    return display.table("where a step's time goes", ("cause", "time", "share"), rows)


def sent_table(sent_bytes: Mapping[str, int]) -> Table:
    """Return the table of the bytes that a device sends in a step, by axis, most first."""
    ranked = sorted(sent_bytes.items(), key=itemgetter(1), reverse=True)
    return display.table("sent by a device", ("axis", "bytes"), ((axes, _bytes(nbytes)) for axes, nbytes in ranked))


def memory_table(step: Projection) -> Table:
    """Return the table of the memory of the fullest device."""
    lines = [(line.what, _bytes(line.nbytes)) for line in step.memory]
    left = ("to spare", _bytes(step.margin_bytes)) if step.fits else ("too much", _bytes(-step.margin_bytes))
    return display.table("memory of the fullest device", ("of what", "bytes"), [*lines, left])
