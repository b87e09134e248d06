"""Seconds of a step as they were measured, from whatever a row says that is as good: throughput, operations, use."""

from __future__ import annotations

from planner.graph.build import MIXED
from results.scoreboard.cells import SetError
from results.scoreboard.row import MEASURED, Row
from results.scoreboard.runs import Run
from results.scoreboard.sizes import Size


def measured_s(row: Row, run: Run) -> float | None:
    """Return the seconds of a step, None where nothing says them; SetError where what says them needs more."""
    said = next((name for name in MEASURED if getattr(row, name) is not None), None)
    if said is None:
        return None
    value = float(getattr(row, said))
    devices = run.devices
    if said == "seconds":
        return value
    if said.startswith("samples"):
        return run.batch / (value * (devices if said.endswith("device") else 1))
    if said.startswith("tokens"):
        sequence = run.size.sequence if run.size else row.sequence
        if sequence is None:
            raise SetError(f"{said}: expected the tokens of a sample, found none")
        return run.batch * sequence / (value * (devices if said.endswith("device") else 1))
    size = _size(run, said)
    whole = said in {"hardware_flop_per_s", "hfu"}
    flop = size.hardware_flop(run.batch, row.recompute) if whole else size.model_flop(run.batch)
    rate = value * peak(run) if said in {"mfu", "hfu"} else value
    return flop / (rate * devices)


def _size(run: Run, said: str) -> Size:
    if run.size is None:
        raise SetError(f"{said}: expected a model by its sizes, found {run.name}")
    return run.size


def peak(run: Run, *, in_eight_bits: bool = False) -> float:
    """Return the operations per second that the data sheet says of a device in a run's precision.

    What is trained in 8 bits is measured by the rate in 16, as most who publish shares of it do, or by its own.
    """
    dtype = str(dict(run.options).get("dtype", "float32"))
    products = {**MIXED, "mixed-float8": "float8" if in_eight_bits else "bfloat16"}
    return run.machine.built.devices[0].peak(products.get(dtype, dtype))
