"""The least bytes of one coarse graph by one solver, in a process of its own: MODEL BATCH PLACEMENTS GRAPH SOLVER."""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from planner.models import build
from planner.search import Limits, SearchOptions, Ties, space_of
from planner.search.joint import joint
from results.certificate.toulbar2 import certified, whole_problem

WAYS = (2, 2, 2)


def measure(model: str, batch: int, placements: str, graph: str, solver: str) -> dict[str, Any]:
    """Return the problem's size, the cost that a solver finds, and its CPU seconds and memory."""
    options = SearchOptions(WAYS, "joint", placements, Ties() if graph == "tied" else None)
    space = space_of(build(model, batch=batch), options)
    if solver == "joint":
        started = time.process_time()
        outcome = joint(space, Limits())
        record = {"bytes": outcome.cost, "bound": outcome.lower_bound, "cpu_seconds": time.process_time() - started}
    else:
        problem = whole_problem(space)
        entries = sum(problem.tables[number].size for _, number in problem.terms)
        proved = certified(problem)
        record = {"bytes": proved.cost, "bound": proved.cost, "cpu_seconds": proved.cpu_seconds}
        record |= {"variables": len(problem.sizes), "tables": len(problem.terms), "entries": entries}
    return record | {"memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


if __name__ == "__main__":
    model, batch, *how = sys.argv[1:]
    print(json.dumps(measure(model, int(batch), *how)))
