"""The commands of one number of ranks and one transport: plan, calibrate, predict, and only then run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.report.schema import Report, read_reports
from results.experiment import launcher, now, run_command

MODELS: Mapping[str, Sequence[str]] = {
    "mlp-4-2048": ("--batch", "512"),
    "cnn-5-64": ("--batch", "64", "--image", "32"),
    "wresnet-14-2": ("--batch", "64", "--image", "8", "--channels", "1", "--classes", "10"),
    "wresnet-50-1": ("--batch", "64", "--image", "32"),
    "rnn-2-512": ("--batch", "64"),
    "transformer-12-768": ("--batch", "2", "--sequence", "128"),
}
CALIBRATIONS: Mapping[str, Sequence[str]] = {"own": ("--only-plans", "--seconds", "36"), "plain": ("--seconds", "24")}
"""Calibrated with the plans' own kernels, and without a sight of the plans."""

STEPS = 4


@dataclass(frozen=True, slots=True)
class Job:
    """So many ranks, how they send, a folder for what the commands write, and the models to run."""

    ranks: int
    transport: str
    folder: Path
    models: Sequence[str] = tuple(MODELS)

    def predictions(self) -> list[dict[str, Any]]:
        """Plan every model, calibrate, and simulate every plan on each calibrated machine."""
        for model in self.models:
            run_command("plan", model, *MODELS[model], "--workers", str(self.ranks), "-o", str(self._plan(model)))
        for calibration, options in CALIBRATIONS.items():
            plans = [str(self._plan(model)) for model in self.models] if calibration == "own" else []
            machine = ("-o", str(self._machine(calibration)), "--transport", self.transport)
            self._ranks("calibrate", *plans, *options, *machine)
        found = []
        for model in self.models:
            reports = {calibration: self._predicted(model, calibration) for calibration in CALIBRATIONS}
            parts = {name: summed(report) for name, report in reports.items()}
            cell = {"model": model, "ranks": self.ranks, "transport": self.transport, "predicted_at": now()}
            cell["predicted_s"] = {name: report.seconds_per_step for name, report in reports.items()}
            cell["parts_s"] = parts
            cell["bytes"], cell["arena_bytes"] = reports["own"].bytes, reports["own"].arena_bytes
            found.append(cell)
        return found

    def measurements(self) -> list[dict[str, Any]]:
        """Run every plan."""
        path = self.folder / "measured.json"
        plans = [str(self._plan(model)) for model in self.models]
        how = ("--steps", str(STEPS), "--transport", self.transport, "--tasks", "--json", str(path))
        self._ranks("execute", *plans, *how)
        return [
            {
                "measured_at": now(),
                "measured_s": report.seconds_per_step,
                "step_s": report.step_seconds,
                "parts_s": summed(report),
                "bytes": report.bytes,
                "arena_bytes": report.arena_bytes,
            }
            for report in read_reports(path)
        ]

    def _predicted(self, model: str, calibration: str) -> Report:
        path = self.folder / f"{model}.{calibration}.json"
        machine = ("--topo", str(self._machine(calibration)), "--no-data-parallel")
        run_command("simulate", str(self._plan(model)), *machine, "--tasks", "--json", str(path))
        return read_reports(path)[0]

    def _plan(self, model: str) -> Path:
        return self.folder / f"{model}.plan.json"

    def _machine(self, calibration: str) -> Path:
        return self.folder / f"{calibration}.yaml"

    def _ranks(self, command: str, *arguments: str) -> None:
        run_command(command, *arguments, before=(launcher(), "-n", self.ranks))


def summed(report: Report) -> dict[str, float]:
    """Return the seconds of a worker, the mean over all, by kind of task and by category of kernels."""
    found: defaultdict[str, float] = defaultdict(float)
    for one in report.tasks:
        for name in (one.kind, one.category):
            if name:
                found[name] += one.seconds / report.workers
    return dict(found)
