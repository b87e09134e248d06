"""From a graph and options to a plan: the space of plans, its search, and the report of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from planner.graph.ir import Graph
from planner.plans.plan import Plan, check_countable
from planner.search.carriage import carriage, may_be_partial
from planner.search.coarse.coarsen import CoarseGraph, Coarsenings, Ties
from planner.search.memory import fitted
from planner.search.objectives.objective import BYTES, Objective
from planner.search.objectives.timing import MOST_TICKS, MOST_TICKS_PARTIAL, Time, time_on
from planner.search.options import SearchOptions, placements_of, ties_of
from planner.search.searchers import FREE, HEURISTIC_STEPS, SEARCHERS, heuristics
from planner.search.space import Outcome, Space, State


def search(graph: Graph, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Plan:
    """Return the plan that the named searcher finds, or that of what else is tried where it costs less (to 4 steps).

    An alternative asked for by name is returned as it is. `Plan.search` says what was asked for, which searcher won,
    every candidate's bytes (and predicted seconds), a lower bound for what the asked-for searcher may choose from and
    the gap to it (where it knows one), seconds and table sizes. Raises a PlanError for options that make no sense, a
    TopologyError for a machine that cannot run the plan, a DoesNotFitError where no plan is found that fits.
    `coarsenings` are the graph's, for searching it again.
    """
    started = time.perf_counter()
    placements = placements_of(options)
    check_countable(graph, options.ways)
    known = Coarsenings(graph) if coarsenings is None else coarsenings
    space = space_of(graph, options, known)
    found = _found(space, options, known)
    plan = partial(_plan, graph, options, space)
    winner, bound = min(found, key=lambda name: found[name].cost), found[options.name].lower_bound
    details: dict[str, Any] = dict(found[options.name].details)
    if options.memory_bytes is not None:
        names = (options.name, "recursive") if options.name == "joint" else (options.name,)
        again = {name: partial(_again, options, name) for name in names}
        found |= {name: ask(space) for name, ask in again.items() if name not in found}
        fit = fitted(space, found, again, plan, options.memory_bytes)
        winner, bound, details["memory"] = fit.name, fit.lower_bound, fit.report
        found = {winner: fit.outcome}
    report = _report(options, ties_of(options, known), placements, found[winner], bound)
    report |= {"winner": winner, **details}
    report |= _costs(space, found, bound, winner) | {"seconds": round(time.perf_counter() - started, 3)}
    return plan(found[winner].choice, report)


def _found(space: Space, options: SearchOptions, known: Coarsenings) -> dict[str, Outcome]:
    """Return what the named searcher finds and, where nothing proves that the least, what else is tried, by name.

    "S" and "S,R" are the searcher with fewer placements, "tied" with all ties, which under "S" the recursion is mostly,
    but not always, better without.
    """
    placements, name = placements_of(options), options.name
    found = {name: SEARCHERS[name](space, options.limits)}
    if placements == "S,R,P":
        found["S,R"] = _elsewhere(space, _with_fewer(options, known, "S,R"), known, [name])
    proved = found[name].lower_bound == found[name].cost and options.memory_bytes is None
    if proved or name not in ("recursive", "joint") or len(options.ways) > HEURISTIC_STEPS:
        return found
    for heuristic in heuristics(space, placements):
        found[heuristic] = SEARCHERS[heuristic](space.without_partial(), options.limits)
    if space.replicate and space.is_small:
        found["S"] = _elsewhere(space, _with_fewer(options, known, "S"), known, [name, *heuristics(space, "S")])
    if placements == "S" and name == "recursive" and options.ties is None and not ties_of(options, known).elementwise:
        found["tied"] = _elsewhere(space, replace(options, ties=Ties()), known, [name])
    return found


def _again(options: SearchOptions, name: str, space: Space) -> Outcome:
    return SEARCHERS[name](space, options.limits)


def _plan(
    graph: Graph, options: SearchOptions, space: Space, choice: Sequence[State], report: Mapping[str, Any] | None = None
) -> Plan:
    layouts, strategies = space.layouts(choice), space.strategies(choice)
    return Plan(graph, options.seed, options.ways, layouts, strategies, report or {})


def _with_fewer(options: SearchOptions, known: Coarsenings, placements: str) -> SearchOptions:
    """Return the options with fewer placements; sums are tied where terms may be kept otherwise."""
    asked = replace(options, placements=placements)
    ties = ties_of(asked, known)
    partial = placements_of(options) == "S,R,P"
    return replace(asked, ties=replace(ties, accumulation=ties.accumulation or partial), untie=())


def _elsewhere(space: Space, asked: SearchOptions, known: Coarsenings, names: Iterable[str]) -> Outcome:
    """Return the best that some searchers find among the plans of other options, as one of this space."""
    other = replace(space_of(space.coarse.graph, asked, known), objective=space.objective)
    found = min((_again(asked, name, other) for name in names), key=lambda outcome: outcome.cost)
    choice = space.adopted(other, found.choice)
    return replace(found, choice=choice, cost=space.cost(choice))


def space_of(graph: Graph, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Space:
    """Return the space of plans that the options describe."""
    known = Coarsenings(graph) if coarsenings is None else coarsenings
    placements, ties = placements_of(options), ties_of(options, known)
    if "P" not in placements:
        coarse = known.of(ties)
        return Space(coarse, options.ways, "R" in placements, objective=_objective(options, coarse, MOST_TICKS))
    untied = frozenset[str]() if options.ties is not None else may_be_partial(graph, options.ways)
    coarse = known.of(ties, partial=True, untied=untied)
    objective = _objective(options, coarse, MOST_TICKS_PARTIAL)
    return Space(coarse, options.ways, replicate=True, objective=objective, carriage=carriage(coarse, options.ways))


def _objective(options: SearchOptions, coarse: CoarseGraph, most_ticks: int) -> Objective:
    return BYTES if options.machine is None else time_on(options.machine, options.ways, coarse, most_ticks)


def _report(options: SearchOptions, ties: Ties, placements: str, best: Outcome, bound: int | None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "name": options.name,
        "placements": placements,
        "objective": options.objective,
        "ties": [rule for rule, on in asdict(ties).items() if on],
    }
    if options.name not in FREE:
        report["bound_of"] = options.name
    return report if bound is None else {**report, "gap": round((best.cost - bound) / max(1, bound), 6)}


def _costs(space: Space, found: Mapping[str, Outcome], bound: int | None, winner: str) -> dict[str, Any]:
    """Return every candidate's bytes, the bound, and under the objective time what that predicts."""
    objective = space.objective
    if not isinstance(objective, Time):
        costs = {"bytes": {name: outcome.cost for name, outcome in found.items()}}
        return costs if bound is None else {**costs, "lower_bound": bound}
    in_bytes = replace(space, objective=BYTES)
    domains = [space.domain(v, (state,)) for v, state in enumerate(found[winner].choice)]
    report = {
        "bytes": {name: in_bytes.cost(outcome.choice) for name, outcome in found.items()},
        "machine": objective.machine.name,
        "tick_s": objective.tick_s,
        "predicted_s": {name: outcome.cost * objective.tick_s for name, outcome in found.items()},
        **asdict(objective.breakdown(space.coarse, domains, space.tables)),
    }
    return report if bound is None else {**report, "lower_bound_s": bound * objective.tick_s}
