"""Measured steps: a pace in any unit that trainers print, as seconds per step."""

from __future__ import annotations

import re
from pathlib import Path

from planner.errors import InputError
from planner.files import format_of
from planner.report.profiles import read_profile
from planner.report.schema import read_reports
from simulator.projection.result import Projection

MEASURED = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:e[+-]?\d+)?)\s*(k? ?)([a-zA-Z/% ]+)")
TERA, KILO = 1e12, 1e3
MOST = 1e18
"""Bound on a measured value, in any unit."""

EXPECTED = "expected a number and s, ms, tok/s, tok/s/GPU, samples/s, TFLOP/s (per GPU) or % MFU, as in 9.8k tok/s/GPU"


def seconds_in(file: Path, step: Projection) -> float:
    """Return the seconds per step in a report of `execute` or in a profile.

    Raises InputError if the report is of another number of workers or another batch.
    """
    if not format_of(file.read_bytes()).startswith("report/"):
        return read_profile(file).seconds
    report = read_reports(file)[-1]
    written, expected = (report.source, report.workers, report.batch), ("executor", step.devices, step.samples)
    if written != expected or report.seconds_per_step is None:
        raise InputError(
            f"{file}: expected a run of {step.devices} workers with a batch of {step.samples}, found another"
        )
    return report.seconds_per_step


def seconds_of(measured: str, step: Projection, tokens: int | None, *, tps_of_device: bool = False) -> float:
    """Return the seconds per step of a measurement: a pace, or a file with a report or a profile.

    "tps" means tokens per second of one device if `tps_of_device`. Raises InputError if the text is not a measurement,
    or if it is faster than the devices' peak.
    """
    file = Path(measured.strip())
    seconds = (
        seconds_in(file, step) if file.is_file() else _typed_s(measured, step, tokens, tps_of_device=tps_of_device)
    )
    if seconds < step.model_operations / step.devices / step.peak_flop_per_s:
        raise InputError(f"--measured: expected at most the peak of {step.devices} devices, found {measured!r}")
    return seconds


def _typed_s(measured: str, step: Projection, tokens: int | None, *, tps_of_device: bool) -> float:
    match = MEASURED.fullmatch(measured.strip())
    if match is None:
        raise InputError(f"--measured: {EXPECTED}, found {measured!r}")
    try:
        value = float(match[1].replace(",", "")) * (KILO if match[2].strip() else 1)
    except ValueError:
        value = 0.0
    unit = re.sub(r"seconds?|sec\b", "s", re.sub(r"tokens?", "tok", match[3].lower().replace(" ", "")))
    unit = "tok/s/gpu" if unit == "tps" and tps_of_device else unit
    per_device = unit.endswith(("/gpu", "/device")) or unit.startswith(("tflop", "%"))
    scale = step.devices if per_device else 1
    flop = step.model_operations
    done: dict[str, float] = {
        "samples/s": step.samples, "tflop/s": flop / TERA, "tflops": flop / TERA, "tflops/s": flop / TERA,
        "%mfu": 100 * flop / step.peak_flop_per_s, "%": 100 * flop / step.peak_flop_per_s,
    }  # fmt: skip
    if tokens is not None:
        done["tok/s"] = tokens
    rate = unit.removesuffix("/gpu").removesuffix("/device")
    is_time = unit in {"s", "ms", "s/step", "s/it"} and not match[2].strip()
    if not 0 < value < MOST or not (is_time or rate in done):
        raise InputError(f"--measured: {EXPECTED}, found {measured!r}")
    return value / (KILO if unit == "ms" else 1) if is_time else done[rate] / (value * scale)
