"""Calibrate the device by the command, and predict the models' steps again by what it measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from planner.plans.plan_json import load_plan
from results.gpu.predictions import predicted
from results.gpu.processes import Process, run as run_process
from results.gpu.settings import LIBRARIES, Run, this_run
from topologies import load_topology

BACKENDS = {"torch": "torch", "arrays": "cupy"}
"""What measures a GPU, by the library whose kernels it times."""

TO_END_S = 12.0
"""The command begins nothing after its seconds, and then writes what it has; so long it may take to end."""


class CalibrationError(RuntimeError):
    """The command failed: says how."""


def calibrated(run: Run, backend: str, seconds: float) -> Path:
    """Run the command; return the file that it writes. A host is measured by the models' plans alone.

    CalibrationError where the command fails.
    """
    path: Path = run.work / f"calibrated-{backend}.yaml"
    plans = map(str, map(run.plan, run.scale.models))
    options = ("--backend", backend) if run.on_gpu else ("--only-plans", *plans)
    arguments = ("calibrate", *options, "--seconds", f"{seconds:g}", "-o", str(path))
    command = (sys.executable, "-m", "tensor_partitioner", *arguments)
    ended = run_process(Process(f"calibrate {backend}", command, seconds + TO_END_S), run.work, run.until)
    if ended.failure:
        raise CalibrationError(ended.failure)
    return path


def measured(run: Run, backend: str, seconds: float) -> dict[str, Any]:
    """Calibrate; return the device's file, and what is predicted with it, or how it failed."""
    try:
        path = calibrated(run, backend, seconds)
    except CalibrationError as error:
        return {"failure": str(error)}
    machine = load_topology(str(path))
    models = {model: predicted(load_plan(run.plan(model)), machine) for model in run.scale.models}
    return {"failure": "", "machine": path.read_text(), "models": models}


def main() -> int:
    """Write calibrate.json."""
    run, _ = this_run()
    present = [backend for library, backend in BACKENDS.items() if library in LIBRARIES]
    backends = present if run.on_gpu else [run.backend]
    results: dict[str, dict[str, Any]] = {}
    for number, backend in enumerate(backends):
        share = run.left_s / (len(backends) - number) - TO_END_S
        results[backend] = measured(run, backend, max(1.0, min(run.scale.calibrate_s, share)))
        run.write("calibrate", results)
    return 1 if any(result["failure"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
