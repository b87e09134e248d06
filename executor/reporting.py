"""Turn the result of a job into the report and the trace that simulator and executor share."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from executor.cluster import Cluster
from executor.job import JobResult
from planner.files import Trace, Track
from planner.graph.facts import batch_size, weight_dtype
from planner.plans.plan import Plan
from planner.report.schema import Evaluation, OutsideArena, Report, Setting, finite, matrix


def hardware(xp: Any, cluster: Cluster) -> str:
    """Return a description of the hardware of this host's ranks."""
    if xp is not np:
        device = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)
        return f"{xp.cuda.runtime.getDeviceCount()} x {device['name'].decode()}, {cluster.ranks_on_host} ranks per host"
    return f"{cluster.cores} cores of {processor()}, {cluster.ranks_on_host} ranks per host"


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def report(plan: Plan, path: Path, result: JobResult, settings: Mapping[str, Setting]) -> Report:
    """Return the report of a job, on rank 0. `settings` has the machine's description under "hardware"."""
    batch, seconds = batch_size(plan.graph), statistics.median(result.step_seconds)
    right, seen = result.answers
    records = tuple(record for rank in result.ranks for record in rank.tasks)
    is_timed = bool(records) or settings["backend"] == "numpy"  # on a device, host time is not compute time
    evaluations = tuple(
        Evaluation(step=done, accuracy=score.accuracy, loss=None if score.loss is None else finite(score.loss))
        for done, score in result.evaluations.items()
    )
    return Report(
        source="executor",
        machine=platform.node(),
        hardware=str(settings["hardware"]),
        plan=path.name,
        model=plan.search.model or path.stem,
        searcher=plan.search.searcher or "unknown",
        placements=plan.search.placements or "unknown",
        workers=plan.workers,
        ways=tuple(plan.ways),
        planned_bytes=matrix(plan.bytes.tolist()),
        bytes=tuple(rank.sent_bytes for rank in result.ranks),
        arena_bytes=tuple(rank.arena_bytes for rank in result.ranks),
        planned_arena_bytes=tuple(rank.planned_arena_bytes for rank in result.ranks),
        batch=batch,
        dtype=weight_dtype(plan.graph),
        steps=len(result.step_seconds),
        seconds_per_step=seconds,
        step_seconds=result.step_seconds,
        samples_per_s=batch / seconds if batch and seconds else None,
        compute_seconds=tuple(rank.compute_seconds for rank in result.ranks) if is_timed else (),
        tasks=records,
        outside_arena=_outside_arena(result),
        losses=tuple(finite(loss) for loss in result.losses),
        accuracy=right / seen if seen else None,
        eval_accuracy=evaluations[-1].accuracy if evaluations else None,
        eval_loss=evaluations[-1].loss if evaluations else None,
        evaluations=evaluations,
        first_step=result.first_step,
        check=result.check,
        settings={name: value for name, value in settings.items() if name != "hardware"},
    )


def trace(result: JobResult, one_clock: bool) -> Trace:
    """Return the trace of the last step, with every worker's tasks.

    Ranks of one host share a clock. Otherwise every rank's step starts at zero.
    """
    timeline = Trace()
    first = min(rank.moments[0] for rank in result.ranks)
    for worker, rank in enumerate(result.ranks):
        timeline.process(worker, f"worker {worker}", ("compute", "transfers"))
        origin = first if one_clock else rank.moments[0]
        for (name, track), start, stop in zip(rank.traced, rank.moments, rank.moments[1:], strict=False):
            timeline.interval(Track(worker, track), name, start - origin, stop - origin)
    return timeline


def _outside_arena(result: JobResult) -> tuple[OutsideArena, ...]:
    """Return the bytes of everything allocated outside the arena, for the rank with the most."""
    rows = []
    for what in dict.fromkeys(name for rank in result.ranks for name in rank.outside_arena):
        sizes = [rank.outside_arena.get(what, 0) for rank in result.ranks]
        known = [size for size in sizes if size is not None]
        rows.append(OutsideArena(what=what, nbytes=max(known) if len(known) == len(sizes) else None))
    return tuple(rows)
