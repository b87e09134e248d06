"""Random plans on ranks of one device, by every transport: losses beside one worker's on NumPy, bytes, arenas."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from executor.check import TOLERANCES, least_precise
from executor.cluster import single_rank
from executor.data import Random
from executor.training import Trainer, rank_programs
from planner.plans.plan import single_worker
from planner.plans.plan_json import load_plan
from planner.report.schema import Report, finite, read_reports
from results.experiment import launcher
from results.gpu.processes import Process, run_all
from results.gpu.settings import LIBRARIES, Run, this_run

STEPS, AT_ONCE, MOST_S = 2, 3, 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """Some plans of so many ranks, by a transport and a library; `part` tells it from others of theirs."""

    ranks: int
    transport: str
    kernels: str
    part: str
    plans: tuple[Path, ...]

    @property
    def name(self) -> str:
        """What its process is called, and the file of its reports."""
        return f"{self.transport} {self.kernels} {self.ranks} {self.part}"

    def process(self, run: Run) -> Process:
        """Return the job's process."""
        how = ("--backend", run.backend, "--transport", self.transport, "--kernels", self.kernels)
        options = (*how, "--check", "--steps", str(STEPS), "--json", str(self.written(run)))
        execute = (sys.executable, "-m", "tensor_partitioner", "execute", *options, *map(str, self.plans))
        return Process(self.name, (launcher(), "-n", str(self.ranks), *execute), MOST_S)

    def written(self, run: Run) -> Path:
        """Where it writes its reports."""
        return run.work / f"{self.name.replace(' ', '-')}.json"

    def rows(self, run: Run) -> Iterator[dict[str, Any]]:
        """Yield a row for every plan."""
        written = self.written(run)
        reports = {report.plan: report for report in read_reports(written)} if written.exists() else {}
        for path in self.plans:
            yield {"transport": self.transport, "kernels": self.kernels} | compared(path, reports.get(path.name))


def jobs(run: Run) -> Iterator[Job]:
    """Yield the first plans of all ranks by each transport and library that is installed, then the others."""
    count = run.scale.first_plans
    for part, places in (("first", slice(count)), ("others", slice(count, None))):
        for transport, kernels in run.scale.jobs:
            for ranks in run.scale.ranks:
                if kernels in LIBRARIES:
                    yield Job(ranks, transport, kernels, part, tuple(run.plans(ranks)[places]))


def warm_up(run: Run) -> Process:
    """Return a job of one rank for the graphs of the first plans: it compiles the kernels that others find, then."""
    for ranks in run.scale.ranks:
        for path in run.plans(ranks)[: run.scale.first_plans]:
            single_worker(load_plan(path)).save(run.random / f"k1-{path.name}")
    options = ("--backend", run.backend, "--kernels", "arrays", *map(str, run.plans(1)))
    return Process("warm-up", (sys.executable, "-m", "tensor_partitioner", "execute", *options), MOST_S)


@cache
def losses_alone(path: Path) -> tuple[float, ...]:
    """Train a plan's graph on one worker, on NumPy; return the losses."""
    plan = single_worker(load_plan(path))
    trainer = Trainer(rank_programs(plan, 0), single_rank(os.cpu_count() or 1), np, "p2p")
    losses = []
    for step in range(STEPS):
        trainer.load(Random(plan.graph, plan.seed), step)
        trainer.run()
        losses.append(float(trainer.view(plan.graph.metrics["loss"]).sum()))
    return tuple(losses)


def compared(path: Path, report: Report | None) -> dict[str, Any]:
    """Return how a plan's run compares with the plan, and with one worker; None for what did not run."""
    plan = load_plan(path)
    row: dict[str, Any] = {"plan": path.stem, "workers": plan.workers, "ran": report is not None}
    if report is None or report.check is None:
        return row | {"equal": False}
    pairs = zip(report.losses, losses_alone(path), strict=True)
    gap = max(np.inf if loss is None else abs(loss / alone - 1) for loss, alone in pairs)
    facts = {
        "tensors_equal": report.check.passed,
        "losses_equal": gap <= TOLERANCES[least_precise(plan.graph)],
        "bytes_equal": report.bytes == report.planned_bytes,
        "arena_equal": report.arena_bytes == report.planned_arena_bytes,
    }
    measured = {"bytes": report.total_bytes, "loss_gap": finite(gap), "seconds": report.seconds_per_step}
    worst = {"worst_difference": report.check.worst_difference}
    return row | {"equal": all(facts.values())} | facts | measured | worst


def main() -> int:
    """Write plans.json."""
    run, _ = this_run()
    by_name = {job.name: job for job in jobs(run) if job.plans}
    failed: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    before = [warm_up(run)] if run.on_gpu else []
    for ended in run_all([*before, *(job.process(run) for job in by_name.values())], run.work, run.until, AT_ONCE):
        rows += by_name[ended.name].rows(run) if ended.name in by_name else ()
        failed |= {ended.name: ended.failure} if ended.failure else {}
        run.write("plans", {"steps": STEPS, "failed": failed, "rows": sorted(rows, key=itemgetter("workers"))})
    return 0 if rows and all(row["equal"] for row in rows) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
