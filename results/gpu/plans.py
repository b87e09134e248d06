"""Random plans on ranks of one device, by every transport: losses beside one worker's on NumPy, bytes, arenas."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
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
from results.gpu.processes import Ended, Process, run_all
from results.gpu.settings import LIBRARIES, Run, this_run

STEPS, AT_ONCE, MOST_S = 2, 3, 60.0


def processes(run: Run) -> Iterator[Process]:
    """Yield a job for all plans of so many ranks, by each transport and library."""
    for ranks in run.scale.ranks:
        for transport, kernels in jobs(run):
            written = report_file(run, ranks, transport, kernels)
            how = ("--backend", run.backend, "--transport", transport, "--kernels", kernels)
            options = (*how, "--check", "--steps", str(STEPS), "--json", str(written))
            execute = (sys.executable, "-m", "tensor_partitioner", "execute", *options)
            command = (launcher(), "-n", str(ranks), *execute, *map(str, run.plans(ranks)))
            yield Process(f"{transport} {kernels} {ranks}", command, MOST_S)


def jobs(run: Run) -> list[tuple[str, str]]:
    """Return transports and the kernels that run with them, of libraries that are installed."""
    return [(transport, kernels) for transport, kernels in run.scale.jobs if kernels in LIBRARIES]


def report_file(run: Run, ranks: int, transport: str, kernels: str) -> Path:
    """Where a job writes its reports."""
    return run.work / f"{transport}-{kernels}-{ranks}.json"


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


def rows(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a row for every plan by every transport and library."""
    for ranks in run.scale.ranks:
        for transport, kernels in jobs(run):
            written = report_file(run, ranks, transport, kernels)
            reports = {report.plan: report for report in read_reports(written)} if written.exists() else {}
            for path in run.plans(ranks):
                yield {"transport": transport, "kernels": kernels} | compared(path, reports.get(path.name))


def main() -> int:
    """Write plans.json."""
    run, _ = this_run()
    ended: list[Ended] = []
    compared_rows: list[dict[str, Any]] = []
    for process in run_all(processes(run), run.work, run.until, AT_ONCE):
        ended.append(process)
        compared_rows = list(rows(run))
        failed = {job.name: job.failure for job in ended if job.failure}
        run.write("plans", {"steps": STEPS, "failed": failed, "rows": compared_rows})
    everything = all(row["equal"] for row in compared_rows) and not any(job.failure for job in ended)
    return 0 if compared_rows and everything else 1


if __name__ == "__main__":
    sys.exit(main())
