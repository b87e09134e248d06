"""Planning, as the command `plan` and `planner.plan` do it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import topologies
from planner.errors import PlanError
from planner.graph.facts import batch_size, recomputed
from planner.graph.ir import Graph
from planner.graph.order import in_structural_order
from planner.parallel import GRADIENTS, WEIGHTS, Parallel
from planner.plans.check import check_workers
from planner.plans.plan import Plan
from planner.plans.records import ACCUMULATION, DEFAULT, INTERLEAVED, SCHEDULE_NAMES, read_schedule
from planner.plans.rewriting import gather_for_each_pass, gather_once, scatter_each_micro_batch
from planner.search import SearchOptions, best_plan
from planner.search.coarse import Coarsenings
from planner.search.memory import parse_memory
from planner.search.options import Option, options_of
from planner.search.solver.problem import Tuning
from planner.search.stages import with_stages

DEVICES = "devices"
"""The value of `memory` that means: the memory of each worker's own device."""

LOWERING, NEEDS = "planner.program.lower", "planner.program.workspace"
"""Imported only if memory is limited."""

WORKERS = (
    f"Number of workers. Up to {Tuning().factored_workers}, all factorizations are tried; above, only the prime "
    "factors and the number itself."
)
MEMORY = f"Memory limit per worker, such as 11GiB; '{DEVICES}': that of the machine's devices.  [default: no limit]"


STAGES = "Pipeline stages. Each stage has an equal number of workers; --ways applies within a stage."


SCHEDULE = (
    f"Pipeline schedule: {', '.join(SCHEDULE_NAMES)}, or {INTERLEAVED}:V with V virtual stages per worker.  "
    f"[default: {DEFAULT} with stages]"
)


def _read_schedule(text: str | None) -> str | None:
    if text is not None:
        read_schedule(text)
    return text


def read_memory(memory: int | str | None) -> int | str | None:
    """Parse a number of bytes, such as `11GiB`, or `devices`. Raises PlanError for anything else."""
    if isinstance(memory, str):
        return memory if memory == DEVICES else parse_memory(memory)
    if memory is not None and (type(memory) is not int or memory < 1):
        raise PlanError(f"memory: expected a positive number of bytes, or text such as 11GiB, found {memory!r}")
    return memory


SEARCH_OPTIONS: Mapping[str, Option] = options_of(SearchOptions)
"""The options of a search, by name."""

OPTIONS: Mapping[str, Option] = {
    "workers": Option("--workers", WORKERS, least=1),
    **SEARCH_OPTIONS,
    "stages": Option("--stages", STAGES, least=1, default=1),
    "schedule": Option("--schedule", SCHEDULE, read=_read_schedule, metavar="NAME"),
    "memory": Option("--memory", MEMORY, read=read_memory, metavar="BYTES"),
}
"""The options of `plan` for a graph, by name. Commands use their flags."""


def plan(  # noqa: PLR0913 -- the options of a user, by name
    graph: Graph,
    workers: int | None = None,
    *,
    machine: str | topologies.Machine | None = None,
    memory: int | str | None = None,
    stages: int = 1,
    schedule: str | None = None,
    **options: Any,
) -> Plan:
    """Return the best plan found for a graph on `workers` workers.

    For up to 16 workers all factorizations are tried, unless `ways=(4, 2)` fixes one. `machine` is a name, a YAML file
    or a Machine; `objective="time"` estimates the time on it. `memory`, such as "11GiB" or a number of bytes, limits
    each worker's arena; with a `machine`, the workspace and the device's reserved memory count too. "devices" takes the
    limit from the machine. With `stages` above 1 the forward pass is cut into that many parts, each with its backward
    and update operators, and each runs on its own group of workers; `ways` applies within a stage, and a `machine` lets
    the planner choose the cut with the fastest slowest stage. `schedule` is the order in which stages run
    micro-batches, by default `1f1b`.

    Other options are those of `SearchOptions`: `searcher`, `placements`, `seed`, `shares`, ... Raises PlanError for
    invalid options or if no plan fits, and TopologyError if the machine cannot run the plan.

    >>> import planner
    >>> planner.plan(planner.model("mlp-2-16", batch=8), workers=4).total_bytes
    2200
    """
    given = {"machine": machine, "memory": memory, "stages": stages, "schedule": schedule}
    request, graph = request_of(graph, workers, **given, **options), in_structural_order(graph)
    return planned(graph, request, Coarsenings(graph))


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a plan: the workers per stage, the search options, the stages, and the machine."""

    workers: int
    search: SearchOptions
    stages: int
    schedule: str
    machine: topologies.Machine | None
    limit_bytes: int | None


def request_of(graph: Graph, workers: int | None = None, **options: Any) -> Request:
    """Return the Request for the arguments of `plan`. Raises PlanError or TopologyError for invalid options."""
    machine, memory = options.pop("machine", None), options.pop("memory", None)
    stages, schedule = options.pop("stages", 1), options.pop("schedule", None)
    if not isinstance(graph, Graph):
        raise PlanError(f"expected a graph, as planner.model returns, found {graph!r}")
    if unknown := [name for name in options if name not in (*SEARCH_OPTIONS, "bound", "limits")]:
        raise PlanError(f"unknown option {', '.join(unknown)}; expected one of {', '.join((*OPTIONS, 'machine'))}")
    options = {name: _read(name, value) for name, value in options.items()}
    limit = read_memory(memory)
    machine = None if machine is None else topologies.load_topology(machine)
    capacities = _capacities(machine) if limit == DEVICES else []
    arena_of = _arena_sizes if machine is None else partial(_needed_bytes, machine, capacities)
    limit_bytes = max(capacities) if isinstance(limit, str) else limit
    stages = _stages(stages, options.get("parallel"))
    schedule = _schedule(schedule, stages, options.get("parallel"))
    of_bytes_only = options.get("objective", "bytes") == "bytes" and (limit is not None or stages > 1)
    search = SearchOptions(
        machine=None if of_bytes_only else machine,
        memory_bytes=limit_bytes if stages == 1 else None,
        arena_of=arena_of,
        **options,
    )
    if workers is None and search.shares:
        workers = len(search.shares)
    if search.parallel is not None:
        workers = _workers_of_parallel(workers, search.parallel)
        _check_micro_batches(graph, search.parallel)
        if search.parallel.recompute == "full" and not recomputed(graph):
            raise PlanError(f"parallel {search.parallel}: expected a graph that recomputes activations")
    of_stage = _workers_of_stage(workers, search.division.factors, stages)
    return Request(of_stage, search, stages, schedule, machine, limit_bytes)


def planned(graph: Graph, request: Request, coarsenings: Coarsenings) -> Plan:
    """Return the best plan found for a request. `coarsenings` are those of the graph."""
    search, stages, limit_bytes = request.search, request.stages, request.limit_bytes
    plan = best_plan(graph, request.workers, search, coarsenings)
    if stages > 1:
        plan = with_stages(
            plan, stages, request.machine, schedule=request.schedule, limit_bytes=limit_bytes, arenas_of=search.arena_of
        )
    return plan if search.parallel is None else _as_named(plan, search.parallel)


def _as_named(plan: Plan, parallel: Parallel) -> Plan:
    """Return the plan with the copies that named parallelism implies.

    With ZeRO 3 weights are gathered once per pass, with `sp` or `ep` equal fetches are gathered once, and with ZeRO 2
    gradients are accumulated in shards, one reduce-scatter per micro-batch.
    """
    plan = gather_for_each_pass(plan) if parallel.zero == WEIGHTS else plan
    plan = gather_once(plan) if parallel.sp or parallel.ep > 1 else plan
    return scatter_each_micro_batch(plan) if parallel.zero >= GRADIENTS else plan


def _workers_of_parallel(workers: int | None, parallel: Parallel) -> int:
    if parallel.pp == 1 and not parallel.axes:
        raise PlanError("parallel: expected a degree of at least 2, such as tp=2, found none")
    if workers not in (None, parallel.workers):
        raise PlanError(f"parallel {parallel} has {parallel.workers} workers, expected {workers}")
    return parallel.workers


def _check_micro_batches(graph: Graph, parallel: Parallel) -> None:
    """Raise PlanError if the graph is not cut into the micro-batches of named parallelism."""
    samples = batch_size(graph)
    if parallel.micro_batch is None or samples is None:
        return
    if (expected := parallel.micro_batches(samples)) != graph.micro_batches:
        raise PlanError(
            f"parallel {parallel}: expected a graph of {expected} micro-batches (micro_batches={expected}), found "
            f"{graph.micro_batches}"
        )


def _stages(stages: int, parallel: Parallel | None) -> int:
    """Return the number of stages, given by `stages` or by named parallelism. Raises PlanError if they disagree."""
    if type(stages) is not int or stages < 1:
        raise PlanError(f"stages: expected a positive integer, found {stages!r}")
    if parallel is None or parallel.pp == 1:
        return stages
    if stages not in (1, parallel.pp):
        raise PlanError(f"stages: expected {parallel.pp}, as in parallel {parallel}, found {stages}")
    return parallel.pp


def _schedule(schedule: str | None, stages: int, parallel: Parallel | None) -> str:
    """Return the schedule, given by `schedule` or by named parallelism. Raises PlanError if they disagree."""
    _read_schedule(schedule)
    if stages == 1 and schedule not in (None, ACCUMULATION):
        raise PlanError(f"schedule {schedule}: needs at least 2 stages, found 1")
    if parallel is None or parallel.pp == 1:
        return schedule or DEFAULT
    if schedule not in (None, parallel.schedule):
        raise PlanError(f"schedule: expected {parallel.schedule}, as in parallel {parallel}, found {schedule}")
    return parallel.schedule


def _read(name: str, value: object) -> object:
    """Parse the value of an option given in Python. Raises PlanError that names the option."""
    try:
        return SEARCH_OPTIONS[name].read(value) if name in SEARCH_OPTIONS else value
    except PlanError as error:
        raise PlanError(f"{name}: {error}") from error


def _arena_sizes(plan: Plan) -> tuple[int, ...]:
    """Return each worker's arena in bytes. Lowering is imported only for plans with a memory limit."""
    return tuple(import_module(LOWERING).arena_sizes(plan))


def _needed_bytes(machine: topologies.Machine, capacities: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """Return the bytes each worker needs of its device's memory.

    With `capacities`, the difference between the largest capacity and the worker's own is added, so that a value within
    the largest capacity means that the worker fits in its own device.
    """
    machine.require_devices(plan.workers)
    needed = map(import_module(NEEDS).needed_bytes, import_module(LOWERING).lower(plan).workers, machine.devices)
    if not capacities:
        return tuple(needed)
    return tuple(nbytes + max(capacities) - own for nbytes, own in zip(needed, capacities, strict=False))


def _capacities(machine: topologies.Machine | None) -> list[int]:
    """Return each device's memory in bytes: its own, or an equal part of a shared one.

    Raises PlanError without a machine.
    """
    if machine is None:
        raise PlanError(f"memory {DEVICES}: needs a machine")
    memories = (machine.memories[device.memory] for device in machine.devices)
    return [int(memory.nbytes / len(memory.devices)) for memory in memories]


def _workers_of_stage(workers: int | None, ways: tuple[int, ...], stages: int) -> int:
    if workers is None and not ways:
        raise PlanError("expected a number of workers (--workers 8) or ways (--ways 4,2), found neither")
    total = stages * math.prod(ways) if workers is None else workers
    if type(total) is not int or total < 1:
        raise PlanError(f"expected a positive number of workers, found {workers!r}")
    check_workers(total)
    if total % stages:
        raise PlanError(f"stages: must divide {total} workers, found {stages}")
    if ways and total != stages * math.prod(ways):
        within = f" in {stages} stages" if stages > 1 else ""
        raise PlanError(
            f"ways {','.join(map(str, ways))}{within} makes {stages * math.prod(ways)} workers, not {workers}"
        )
    return total // stages
