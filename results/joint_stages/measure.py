"""One joint search in a process of its own, without one stage: STAGE MODEL BATCH WAYS PLACEMENTS SECONDS."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from planner.models import build
from planner.search import Limits, SearchOptions, joint as of_joint, space_of
from planner.search.costs.tables import Term
from planner.search.solver import coarse_to_fine, minimise
from planner.search.solver.coarse_to_fine import SearchState
from planner.search.solver.elimination import Order, greedy_order
from planner.search.solver.problem import Tuning
from tensor_partitioner.commands.console import COLLECTED_EVERY

NONE = "none"
ORDERED = (minimise, minimise, coarse_to_fine)


def greedy(
    sizes: Sequence[int], terms: Sequence[Term], most_operations: float, tuning: Tuning, orders: int | None = None
) -> Order:
    """Return an order as `lockstep_order` does, which follows single variables."""
    return greedy_order(sizes, [scope for scope, _ in terms], most_operations, most_operations)


INSTEAD: dict[str, list[tuple[Any, str, Any]]] = {
    "lockstep": [(module, "lockstep_order", greedy) for module in ORDERED],
}
"""What is put in the place of what, for stages within stages."""


def measure(model: str, batch: int, ways: tuple[int, ...], placements: str, seconds: float) -> dict[str, Any]:
    """Return a search's cost, bound, CPU seconds from graph to plan, memory, and what each stage took."""
    spent: dict[str, float] = {}
    for name, stage in minimise.STAGES.items():
        minimise.STAGES[name] = _timed(name, stage, spent)
    graph = build(model, batch=batch)
    started = time.process_time()
    solution = of_joint.joint(space_of(graph, SearchOptions(ways, "joint", placements)), Limits(seconds=seconds))
    return {
        "bytes": solution.cost,
        "lower_bound": solution.lower_bound,
        "cpu_seconds": round(time.process_time() - started, 2),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "spent": {name: round(taken, 2) for name, taken in spent.items()},
    }


def _timed(name: str, stage: Any, spent: dict[str, float]) -> Any:
    def timed(task: minimise.Task, search: SearchState) -> SearchState:
        started = time.process_time()
        search = stage(task, search)
        spent[name] = spent.get(name, 0.0) + time.process_time() - started
        return search

    return timed


def main(stage: str, model: str, batch: str, *how: str) -> None:
    """Print what a search without a stage comes to."""
    ways, placements, seconds = how
    with ExitStack() as patches:
        for where, name, other in INSTEAD.get(stage, []):
            patches.enter_context(patch.object(where, name, other))
        minimise.STAGES.pop(stage, None)
        print(json.dumps(measure(model, int(batch), tuple(map(int, ways.split(","))), placements, float(seconds))))


if __name__ == "__main__":
    gc.set_threshold(COLLECTED_EVERY)  # as the command `plan` does
    main(*sys.argv[1:])
