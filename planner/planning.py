"""Planning, as the command `plan` and `planner.plan` do it."""

from __future__ import annotations

import math
from typing import Any

from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.plans.check import check_workers
from planner.plans.plan import Plan
from planner.program.lower import arena_sizes
from planner.search import SearchOptions, best_plan
from planner.search.memory import parse_memory
from topologies import Machine, load_topology


def plan(
    graph: Graph,
    workers: int | None = None,
    *,
    machine: str | Machine | None = None,
    memory: int | str | None = None,
    **options: Any,
) -> Plan:
    """Return the best plan found for a graph on `workers` workers.

    All factorisations of up to 16 workers are tried, unless `ways=(4, 2)` fixes one. `machine`, a name, a YAML file or
    a Machine, is what `objective="time"` is about; `memory`, as in "11GiB" or in bytes, what every worker's arena must
    fit in. Other options are fields of `SearchOptions`: `searcher`, `placements`, `seed`, ... Raises a PlanError for
    what makes no sense or where nothing fits, a TopologyError for a machine that cannot run the plan.
    """
    asked = SearchOptions(
        machine=load_topology(machine) if isinstance(machine, str) else machine,
        memory_bytes=parse_memory(memory) if isinstance(memory, str) else memory,
        arena_of=arena_sizes,
        **options,
    )
    return best_plan(graph, _workers(workers, asked.ways), asked)


def _workers(workers: int | None, ways: tuple[int, ...]) -> int:
    if workers is None and not ways:
        raise PlanError("expected a number of workers (--workers 8) or ways (--ways 4,2), found neither")
    found = math.prod(ways) if workers is None else workers
    check_workers(found)
    if ways and found != math.prod(ways):
        raise PlanError(f"ways {','.join(map(str, ways))} makes {math.prod(ways)} workers, not {workers}")
    return found
