"""Planning, as the command `plan` and `planner.plan` do it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.plans.check import check_workers
from planner.plans.plan import Plan
from planner.program.lower import arena_sizes, lower
from planner.program.workspace import needed_bytes
from planner.search import SearchOptions, Ties, best_plan
from planner.search.memory import parse_memory
from planner.search.options import placements_of
from topologies import Machine, load_topology

OPTIONS = tuple(
    field.name for field in fields(SearchOptions) if field.name not in ("machine", "memory_bytes", "arena_of")
)
"""What `plan` takes besides a graph, workers, a machine and memory."""

DEVICES = "devices"
"""As memory: that of each worker's own device."""


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
    a Machine, is what `objective="time"` is about. `memory`, as in "11GiB" or in bytes, is what every worker's arena
    must fit in, on a `machine` with its workspace and what the device reserves; "devices" is what its own has.
    Other options are fields of `SearchOptions`: `searcher`, `placements`, `seed`, `shares`, ... Raises a PlanError for
    what makes no sense or where nothing fits, a TopologyError for a machine that cannot run the plan.
    """
    if not isinstance(graph, Graph):
        raise PlanError(f"expected a graph, as planner.model returns, found {graph!r}")
    if unknown := [name for name in options if name not in OPTIONS]:
        raise PlanError(f"unknown option {', '.join(unknown)}; the options are {', '.join(OPTIONS)}")
    if machine is not None and not isinstance(machine, str | Machine):
        raise PlanError(f"expected a machine, its name or its YAML file, found {machine!r}")
    if "ties" in options:
        options["ties"] = _ties(options["ties"])
    for name in ("ways", "untie", "shares"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    machine = load_topology(machine) if isinstance(machine, str) else machine
    capacities = _capacities(machine) if memory == DEVICES else []
    arena_of = arena_sizes if machine is None else partial(_needed_bytes, machine, capacities)
    of_memory_only = memory is not None and options.get("objective", "bytes") == "bytes"
    asked = SearchOptions(
        machine=None if of_memory_only else machine,
        memory_bytes=max(capacities) if capacities else _memory_bytes(memory),
        arena_of=arena_of,
        **options,
    )
    placements_of(asked)
    if workers is None and asked.shares:
        workers = len(asked.shares)
    return best_plan(graph, _workers(workers, asked.ways), asked)


def _needed_bytes(machine: Machine, capacities: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """Return what every worker takes of its device's memory; where there are capacities, with what its device lacks.

    So what is within the largest capacity fits in the worker's own.
    """
    machine.require_devices(plan.workers)
    needed = map(needed_bytes, lower(plan).workers, machine.devices)
    if not capacities:
        return tuple(needed)
    return tuple(nbytes + max(capacities) - own for nbytes, own in zip(needed, capacities, strict=False))


def _capacities(machine: Machine | None) -> list[int]:
    """Return what memory each device has: its own, or an equal part of what it shares."""
    if machine is None:
        raise PlanError(f"memory {DEVICES}: expected a machine, whose devices have memory, found none")
    memories = (machine.memories[device.memory] for device in machine.devices)
    return [int(one.nbytes / len(one.devices)) for one in memories]


def _ties(given: object) -> Ties | None:
    """Return coarsening rules as the command spells them: "all", "none", or names of rules."""
    if given is None or isinstance(given, Ties):
        return given
    rules = [field.name for field in fields(Ties)]
    names = given.split(",") if isinstance(given, str) else given
    if names in (["all"], ["none"]):
        return Ties.only(rules if names == ["all"] else [])
    if not isinstance(names, list | tuple) or not all(name in rules for name in names):
        raise PlanError(f"ties: expected all, none or rules among {', '.join(rules)}, found {given!r}")
    return Ties.only(names)


def _memory_bytes(memory: int | str | None) -> int | None:
    if isinstance(memory, str):
        return parse_memory(memory)
    if memory is not None and (type(memory) is not int or memory < 1):
        raise PlanError(f"memory: expected a whole number of bytes from 1, or text as in 11GiB, found {memory!r}")
    return memory


def _workers(workers: int | None, ways: tuple[int, ...]) -> int:
    if workers is None and not ways:
        raise PlanError("expected a number of workers (--workers 8) or ways (--ways 4,2), found neither")
    found = math.prod(ways) if workers is None else workers
    if type(found) is not int or found < 1:
        raise PlanError(f"expected a whole number of workers from 1, found {workers!r}")
    check_workers(found)
    if ways and found != math.prod(ways):
        raise PlanError(f"ways {','.join(map(str, ways))} makes {math.prod(ways)} workers, not {workers}")
    return found
