"""From a graph and options to a plan: the space of plans, its search and its rivals', and the record of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace

from msgspec.structs import replace as with_fields

from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.layout import Ways
from planner.plans.check import check_countable
from planner.plans.plan import Plan
from planner.plans.search_record import Predicted, SearchRecord
from planner.search.coarse.coarsen import Coarsenings
from planner.search.costs.tables import Tables
from planner.search.joint import joint
from planner.search.memory import cheapest_fitting_plan
from planner.search.objectives.objective import BYTES
from planner.search.objectives.timing import MOST_TICKS, MOST_TICKS_PARTIAL, Time, time_objective
from planner.search.options import SearchOptions, placements_of, rivals_of, ties_of
from planner.search.partial_sums import carriage_of, may_be_partial
from planner.search.searchers import ALTERNATIVES, DEAR, FREE, SEARCHERS, UNIFORM
from planner.search.space import Found, Space
from tensor_partitioner.display.progress import tracked

FAR = 1.5
"""An alternative that moves so many times as much as the search where it has one step, is not tried in several: over
the models of the zoo several steps save one that comes near less than a tenth, and nothing where all do the same."""

BOUND_SECONDS = 4.0
"""What the search for a bound may take, beyond what it takes to begin."""

BOUND_STEPS = {"bytes": 3, "time": 2}
"""By objective: with more steps than this no bound is sought, as beginning alone takes long."""


def search(
    graph: Graph,
    options: SearchOptions,
    coarsenings: Coarsenings | None = None,
    alternatives: Collection[str] = ALTERNATIVES,
) -> Plan:
    """Return the plan that the named searcher finds, or that of a rival where it costs less.

    An alternative asked for by name is returned as it is; `joint` is not worse than the recursion with its own ties.
    `Plan.search` is the record of the search. `coarsenings` are the graph's, for searching it again; `alternatives` are
    those that may be tried besides. Raises a PlanError for options that make no sense, a TopologyError for a machine
    that cannot run the plan, a DoesNotFitError where no plan is found that fits.
    """
    started = time.perf_counter()
    placements = placements_of(options)
    check_countable(graph, options.division)
    coarsenings = coarsenings or Coarsenings(graph)
    asked = _found_in_space(space_of(graph, options, coarsenings), options)
    proved = asked.outcome.lower_bound == asked.outcome.cost and options.memory_bytes is None
    rivals = rivals_of(options, coarsenings, alternatives, proved=proved)
    found = {options.searcher: asked, **_found_by_rivals(asked, rivals, coarsenings)}
    bound, memory = asked.outcome.lower_bound, None
    if options.memory_bytes is not None and options.arena_of is not None:
        arenas, priced = options.arena_of, (options.searcher, *(["recursive"] if options.searcher == "joint" else []))
        fit = cheapest_fitting_plan(
            found, priced, lambda one: max(arenas(one.plan(options.seed))), options.memory_bytes
        )
        found, bound, memory = {fit.name: fit.found}, fit.lower_bound, fit.allowed
    winner = min(found, key=lambda name: found[name].outcome.cost)
    record = SearchRecord(
        searcher=options.searcher,
        placements=placements,
        objective=options.objective,
        machine="" if options.machine is None else options.machine.name,
        winner=winner,
        ties=ties_of(options, coarsenings).applied,
        bytes={name: _bytes_moved(one) for name, one in found.items()},
        predicted=_predicted_by_name(found, winner),
        memory=memory,
        details=dict(asked.outcome.details),
    )
    ties = [ties_of(one, coarsenings) for one in (options, {options.searcher: options, **rivals}[winner])]
    record = _record_with_bound(record, asked.space, bound, options.searcher, is_of_space=ties[0].are_among(ties[1]))
    return found[winner].plan(options.seed, with_fields(record, seconds=round(time.perf_counter() - started, 3)))


def _bytes_moved(found: Found) -> int:
    space, outcome = found.space, found.outcome
    return outcome.cost if space.objective is BYTES else replace(space, objective=BYTES).cost(outcome.choice)


def _found_in_space(space: Space, options: SearchOptions) -> Found:
    """Return what the named searcher finds in a space; a PlanError where it returns what is no choice of the space."""
    searcher, limits, name = SEARCHERS[options.searcher], options.limits, options.searcher
    found = searcher(space, limits)
    try:
        outcome = space.checked_outcome(found)
    except PlanError as error:
        raise PlanError(f"searcher {name}: {error}") from error
    return Found(space, outcome, lambda other: searcher(other, limits))


def _found_by_rivals(asked: Found, rivals: Mapping[str, SearchOptions], coarsenings: Coarsenings) -> dict[str, Found]:
    """Return what the rivals find, each in its own space, those that are worth trying."""
    found, own, is_small, of_one_step = {}, asked.space, asked.space.is_small, Tables()
    for name, options in tracked("alternatives", [*rivals.items()]):
        if name in DEAR and not is_small:
            continue
        space = replace(space_of(own.coarse.graph, options, coarsenings), objective=own.objective, tables=own.tables)
        if options.searcher in FREE or _may_be_near(replace(space, tables=of_one_step), options, asked.outcome.cost):
            found[name] = _found_in_space(space, options)
    return found


def _may_be_near(space: Space, options: SearchOptions, cost: int) -> bool:
    """Whether an alternative may move less than a plan of this cost, by what it moves in a single step.

    Hybrid parallelism moves no less than data parallelism at its first step alone, and model parallelism at its last.
    """
    name, ways = options.searcher, space.ways

    def moves_less(name: str, way: int, cost: float) -> bool:
        return SEARCHERS[name](replace(space, ways=Ways((way,))), options.limits).cost < cost

    if space.objective is not BYTES or ways.shares:
        return True
    if name == "hybrid":
        return moves_less("data-parallel", ways[0], cost) and moves_less("model-parallel", ways[-1], cost)
    return moves_less(name, ways.workers, cost if name in UNIFORM else FAR * cost)


def space_of(graph: Graph, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Space:
    """Return the space of plans that the options describe."""
    coarsenings = coarsenings or Coarsenings(graph)
    placements, ties = placements_of(options), ties_of(options, coarsenings)
    partial, ways = "P" in placements, options.division
    untied = may_be_partial(graph, ways) if partial and options.ties is None else frozenset[str]()
    coarse = coarsenings.of(ties, partial=partial, untied=untied)
    most_ticks, machine = MOST_TICKS_PARTIAL if partial else MOST_TICKS, options.machine
    objective = BYTES if machine is None else time_objective(machine, ways, coarse, most_ticks)
    carriage = carriage_of(coarse, ways) if partial else None
    return Space(coarse, ways, "R" in placements, objective=objective, carriage=carriage)


def plan_with_bound(plan: Plan, options: SearchOptions, coarsenings: Coarsenings) -> Plan:
    """Return a plan with a lower bound for its ways, placements and coarse graph, if it has none yet.

    `options` are those that it was searched with. The bound is the joint search's, out of time or not; it does
    not count on a limit to memory. The bound of an alternative, which is about its own choices only, is replaced.
    """
    sought = options.searcher not in FREE or plan.search.lower_bound is None
    if not sought or len(plan.ways) > BOUND_STEPS[options.objective]:
        return plan
    space = space_of(plan.graph, replace(options, ways=plan.ways), coarsenings)
    found = joint(space, replace(options.limits, seconds=min(options.limits.seconds, BOUND_SECONDS)))
    return replace(plan, search=_record_with_bound(plan.search, space, found.lower_bound, "joint", is_of_space=True))


def _record_with_bound(
    record: SearchRecord, space: Space, bound: int | None, searcher: str, *, is_of_space: bool
) -> SearchRecord:
    """Return a record with a lower bound, in the space's unit of cost, of all plans of that space.

    It says nothing of a plan that is not of the space: then it is a detail.
    """
    if bound is None:
        return record
    lower = bound * space.objective.tick_s if isinstance(space.objective, Time) else bound
    if is_of_space and lower <= record.cost:
        return with_fields(record, lower_bound=lower, bound_by=searcher)
    return with_fields(record, details={**record.details, "its_space_has_at_least": lower})


def _predicted_by_name(found: Mapping[str, Found], winner: str) -> Predicted | None:
    """Return, under the objective time, every candidate's seconds and where the winner's go."""
    space, choice = found[winner].space, found[winner].outcome.choice
    if not isinstance(space.objective, Time):
        return None
    domains = [space.domain(v, (state,)) for v, state in enumerate(choice)]
    where = asdict(space.objective.breakdown(space.coarse, domains, space.tables))
    tick_s = space.objective.tick_s
    candidates = {name: one.outcome.cost * tick_s for name, one in found.items()}
    return Predicted(tick_s=tick_s, candidates_s=candidates, **where)
