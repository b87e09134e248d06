"""From findings to the report and the trace that simulator and executor share."""

from __future__ import annotations

import platform
from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from executor.cluster import Cluster
from executor.job import Findings, RankFindings
from executor.training import Programs
from planner.graph.facts import batch_size, weight_dtype
from planner.program.tasks import Compute, Program, Task
from planner.report.schema import OutsideArena, Report, Setting, finite, matrix
from planner.report.task_seconds import Duration, task_seconds
from planner.report.trace import Trace, Track, compute_name


def hardware(xp: Any, cluster: Cluster) -> str:
    """Describe what this host's ranks run on."""
    if xp is not np:
        device = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)
        return f"{xp.cuda.runtime.getDeviceCount()} x {device['name'].decode()}, {cluster.ranks_on_host} ranks per host"
    return f"{cluster.cores} cores of {processor()}, {cluster.ranks_on_host} ranks per host"


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def report(
    programs: Programs, path: Path, findings: Findings, settings: Mapping[str, Setting], *, tasks: bool = False
) -> Report:
    """Return the report of a job, on rank 0; `settings` include the machine's description under "hardware"."""
    plan, program = programs.plan, programs.training
    batch, seconds = batch_size(plan.graph), findings.seconds_per_step
    right, seen = findings.answers
    return Report(
        source="executor",
        machine=platform.node(),
        hardware=str(settings["hardware"]),
        plan=path.name,
        model=plan.search.model or path.stem,
        searcher=plan.search.searcher or "unknown",
        placements=plan.search.placements or "unknown",
        workers=plan.workers,
        ways=plan.ways,
        planned_bytes=matrix(plan.bytes.tolist()),
        bytes=tuple(rank.sent_bytes for rank in findings.ranks),
        arena_bytes=tuple(rank.arena_bytes for rank in findings.ranks),
        planned_arena_bytes=tuple(map(programs.arena_bytes, range(plan.workers))),
        batch=batch,
        dtype=weight_dtype(plan.graph),
        steps=len(findings.step_seconds),
        seconds_per_step=seconds,
        step_seconds=findings.step_seconds,
        samples_per_s=batch / seconds if batch and seconds else None,
        compute_seconds=_compute_seconds(program, findings) if settings["backend"] == "numpy" else (),
        tasks=task_seconds(program, list(map(_durations, findings.ranks))) if tasks else (),
        outside_arena=_outside_arena(findings),
        losses=tuple(finite(loss) for loss in findings.losses),
        accuracy=right / seen if seen else None,
        eval_accuracy=findings.eval_accuracy,
        check=findings.check,
        settings={name: value for name, value in settings.items() if name != "hardware"},
    )


def trace(program: Program, findings: Findings, one_clock: bool) -> Trace:
    """Return the trace of the last step: every worker's tasks.

    Ranks of one host share a clock; else every rank's step starts at zero.
    """
    result = Trace()
    for worker in program.workers:
        result.process(worker.worker, f"worker {worker.worker}", ("compute", "transfers"))
    first = min(rank.moments[0] for rank in findings.ranks)
    for worker, rank in zip(program.workers, findings.ranks, strict=True):
        origin = first if one_clock else rank.moments[0]
        for task, start, stop in zip(worker.tasks, rank.moments, rank.moments[1:], strict=False):
            thread, name = _drawn(task)
            result.interval(Track(worker.worker, thread), name, start - origin, stop - origin)
    return result


def _drawn(task: Task) -> tuple[int, str]:
    """Return a task's thread in the trace, and its name there."""
    if isinstance(task, Compute):
        return 0, compute_name(task)
    return 1, f"{type(task).__name__} {task.transfer}"


def _compute_seconds(program: Program, findings: Findings) -> tuple[float, ...]:
    """Return how long each worker computed in the last step."""
    return tuple(
        sum(
            stop - start
            for task, start, stop in zip(worker.tasks, rank.moments, rank.moments[1:], strict=False)
            if isinstance(task, Compute)
        )
        for worker, rank in zip(program.workers, findings.ranks, strict=True)
    )


def _durations(rank: RankFindings) -> list[Duration]:
    """Return how long each task of the last step took, and how long of that it waited."""
    waited = [0.0] * len(rank.moments)
    for start, stop in rank.waits:
        waited[bisect_right(rank.moments, start) - 1] += stop - start
    return [(stop - start, waited[at]) for at, (start, stop) in enumerate(pairwise(rank.moments))]


def _outside_arena(findings: Findings) -> tuple[OutsideArena, ...]:
    """Return the largest rank's bytes of everything that was allocated outside the arena."""
    found = []
    for what in dict.fromkeys(name for rank in findings.ranks for name in rank.outside_arena):
        sizes = [rank.outside_arena.get(what, 0) for rank in findings.ranks]
        known = [size for size in sizes if size is not None]
        found.append(OutsideArena(what=what, nbytes=max(known) if len(known) == len(sizes) else None))
    return tuple(found)
