"""Plan the models and predict a step of each on this machine, before anything runs; draw the random plans."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import planner
from results.experiment import ROOT
from results.gpu.calibrate import calibrated
from results.gpu.predictions import gpu, predicted
from results.gpu.settings import this_run
from topologies import load_topology


def draw_plans(folder: Path, count: int) -> None:
    """Write random plans, which are drawn as tests draw them."""
    subprocess.run([sys.executable, "-m", "tests.cross.draw_plans", str(folder), str(count)], check=True, cwd=ROOT)


def main() -> int:
    """Write predict.json, and plans into the run's folder for them; a host is calibrated first."""
    run, _ = this_run()
    plans = {}
    for name, model in run.scale.models.items():
        plans[name] = planner.plan(planner.model(model.name, **model.options), workers=1)
        plans[name].save(run.plan(name))
    draw_plans(run.random, run.scale.plans)
    drawn = {str(ranks): len(run.plans(ranks)) for ranks in run.scale.ranks}
    run.write("predict", {"models": {}, "random_plans": drawn})
    if run.on_gpu:
        machine = gpu(run.read("probe")["smi"]["pci.device_id"])
    else:
        machine = load_topology(str(calibrated(run, "numpy", run.scale.calibrate_s)))
    device, models = machine.devices[0].spec, {name: predicted(plan, machine) for name, plan in plans.items()}
    about = {"type": device.name, "calibrated": device.measured is not None}
    run.write("predict", {**about, "models": models, "random_plans": drawn})
    return 0


if __name__ == "__main__":
    sys.exit(main())
