"""Training steps under several systems, simulated on the papers' machine: what several experiments share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import planner
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.program.lower import lower
from planner.program.tasks import Program
from results.searchers import ONE_WEIRD_TRICK
from simulator.simulation import simulated
from topologies import Machine, load_topology

Row = dict[str, Any]

MACHINES = ("p2.8xlarge", "p2.8xlarge-halves")
"""The papers' machine, of which not all is published, under either of two assumptions about its switches."""

SEARCHERS = {"data": "data-parallel", "model": "model-parallel", "mixed": ONE_WEIRD_TRICK}
"""Systems that do the same at every cut; any other is the recursion by two, which SoyBean's k cuts are."""

MILLISECONDS, GIGABYTE = 1e3, 1e9


@lru_cache(maxsize=2)
def graph(model: str, options: tuple[tuple[str, Any], ...]) -> Graph:
    """Return a model's training graph."""
    return planner.model(model, **dict(options))


def plan(of: Graph, workers: int, system: str, placements: str = "S,R") -> Plan:
    """Return a system's plan over a power of two workers: cut by two again and again, or in one step."""
    searcher, cuts = SEARCHERS.get(system, "recursive"), workers.bit_length() - 1
    ways = (2,) * cuts if searcher == "recursive" else (workers,) if workers > 1 else ()
    return planner.plan(of, workers, ways=ways, searcher=searcher, placements=placements)


def step(program: Program, machine: str | Machine) -> Row:
    """Simulate one training step: seconds, bytes over all workers, and whether it fits."""
    simulation = simulated(program, load_topology(machine) if isinstance(machine, str) else machine)
    return {
        "seconds": simulation.seconds,
        "without_communication": simulation.seconds_without_communication,
        "bytes": int(program.bytes.sum()),
        "arena_bytes": max(worker.arena_bytes for worker in program.workers),
        "fits": not simulation.overfull,
    }


def steps(planned: Plan, machines: Iterable[str] = MACHINES) -> Iterator[Row]:
    """Yield the steps on each machine."""
    program = lower(planned)
    for machine in machines:
        yield {"machine": machine, **step(program, machine)}


def only(rows: Iterable[Row], **wanted: Any) -> Row:
    """Return the one row that has these entries."""
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return row


def exposed(row: Mapping[str, Any]) -> float:
    """Return the seconds that communication adds to a step."""
    return float(row["seconds"] - row["without_communication"])
