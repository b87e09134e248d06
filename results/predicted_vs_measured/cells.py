"""The commands of one number of ranks and one transport: plan, and for each model calibrate, predict, and then run."""

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
CALIBRATIONS: Mapping[str, Sequence[str]] = {"own": ("--only-plans", "--seconds", "8"), "plain": ("--seconds", "24")}
"""Calibrated with the plan's own kernels, and without a sight of any plan."""

STEPS = 4


@dataclass(frozen=True, slots=True)
class Job:
    """So many ranks, how they send, a folder for what the commands write, and the models to run."""

    ranks: int
    transport: str
    folder: Path
    models: Sequence[str] = tuple(MODELS)

    def plan(self) -> None:
        """Plan every model, and calibrate without a sight of the plans."""
        for model in self.models:
            run_command("plan", model, *MODELS[model], "--workers", str(self.ranks), "-o", str(self._plan(model)))
        self._calibrate("plain")

    def prediction(self, model: str) -> dict[str, Any]:
        """Calibrate with a plan, and simulate it on either calibrated machine."""
        self._calibrate("own", str(self._plan(model)))
        reports = {calibration: self._predicted(model, calibration) for calibration in CALIBRATIONS}
        return {
            "model": model,
            "ranks": self.ranks,
            "transport": self.transport,
            "predicted_at": now(),
            "predicted_s": {name: report.seconds_per_step for name, report in reports.items()},
            "parts_s": {name: summed(report) for name, report in reports.items()},
            "bytes": reports["own"].bytes,
            "arena_bytes": reports["own"].arena_bytes,
        }

    def measurement(self, model: str) -> dict[str, Any]:
        """Run a plan."""
        path = self.folder / "measured.json"
        how = ("--steps", str(STEPS), "--transport", self.transport, "--tasks", "--json", str(path))
        self._ranks("execute", str(self._plan(model)), *how)
        (report,) = read_reports(path)
        return {
            "measured_at": now(),
            "measured_s": report.seconds_per_step,
            "step_s": report.step_seconds,
            "parts_s": summed(report),
            "bytes": report.bytes,
            "arena_bytes": report.arena_bytes,
        }

    def _calibrate(self, calibration: str, *plans: str) -> None:
        machine = ("-o", str(self._machine(calibration)), "--transport", self.transport)
        self._ranks("calibrate", *plans, *CALIBRATIONS[calibration], *machine)

    def _predicted(self, model: str, calibration: str) -> Report:
        path = self.folder / f"{model}.{calibration}.json"
        machine = ("--topo", str(self._machine(calibration)))
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
    seconds: defaultdict[str, float] = defaultdict(float)
    for task in report.tasks:
        for name in (task.kind, task.category):
            if name:
                seconds[name] += task.seconds / report.workers
    return dict(seconds)
