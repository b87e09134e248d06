"""A simulation as the report that simulator and executor share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.plans.plan import Plan
from planner.report.facts import batch_size, matrix, weight_dtype
from planner.report.schema import Report, Setting
from simulator.simulation import Simulation


def report(plan: Plan, path: Path, simulation: Simulation, settings: Mapping[str, Setting]) -> Report:
    """Return the report of one simulated plan; `path` is the plan's file, by whose name reports are matched."""
    machine, program = simulation.machine, simulation.program
    batch, seconds = batch_size(plan.graph), simulation.seconds
    return Report(
        source="simulator",
        machine=machine.name,
        hardware=machine.description,
        plan=path.name,
        model=str(plan.search.get("model", path.stem)),
        searcher=str(plan.search.get("name", "unknown")),
        placements=str(plan.search.get("placements", "unknown")),
        workers=plan.workers,
        ways=plan.ways,
        planned_bytes=matrix(plan.bytes),
        bytes=matrix(simulation.timeline.bytes),
        arena_bytes=tuple(worker.arena_bytes for worker in program.workers),
        batch=batch,
        dtype=weight_dtype(plan.graph),
        seconds_per_step=seconds,
        step_seconds=(seconds,),
        seconds_without_communication=simulation.seconds_without_communication,
        samples_per_s=batch / seconds if batch and seconds else None,
        compute_seconds=tuple(simulation.timeline.compute_s),
        links=simulation.links,
        devices=simulation.memories,
        settings=settings,
    )
