"""A simulation as the report that simulator and executor share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import Graph
from planner.plan import Plan
from planner.report.schema import Matrix, Report, Setting
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
        planned_bytes=_matrix(plan.bytes),
        bytes=_matrix(simulation.timeline.bytes),
        arena_bytes=tuple(worker.arena_bytes for worker in program.workers),
        batch=batch,
        dtype=_dtype(plan.graph),
        seconds_per_step=seconds,
        step_seconds=(seconds,),
        seconds_without_communication=simulation.seconds_without_communication,
        samples_per_s=batch / seconds if batch and seconds else None,
        compute_seconds=tuple(simulation.timeline.compute_s),
        links=simulation.links,
        devices=simulation.memories,
        settings=settings,
    )


def batch_size(graph: Graph) -> int | None:
    """Return the samples of one iteration: the leading extent of the labels, else of an input; None without any."""
    labels = graph.metrics.get("labels")
    inputs = [tensor.shape for tensor in graph.tensors.values() if tensor.role == "input" and tensor.shape]
    if labels is not None and graph.tensors[labels].shape:
        return graph.tensors[labels].shape[0]
    return inputs[0][0] if inputs else None


def _dtype(graph: Graph) -> str | None:
    counts = Counter(tensor.dtype for tensor in graph.tensors.values() if tensor.role == "weight")
    return counts.most_common(1)[0][0] if counts else None


def _matrix(counted: NDArray[np.int64]) -> Matrix:
    return tuple(tuple(int(n) for n in row) for row in counted)
