"""From a graph and options to a plan: the space of plans, its search, and the record of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import prod

from msgspec.structs import replace as with_fields

from display import product
from planner.graph.ir import Graph
from planner.plans.check import check_countable
from planner.plans.plan import Plan
from planner.plans.search_record import Predicted, SearchRecord, gap_of
from planner.search.alternatives import IMPLIED
from planner.search.carriage import carriage_of, may_be_partial
from planner.search.coarse.coarsen import CoarseGraph, Coarsenings, Ties
from planner.search.costs.tables import Tables
from planner.search.memory import cheapest_fitting_plan
from planner.search.objectives.objective import BYTES, Objective
from planner.search.objectives.timing import MOST_TICKS, MOST_TICKS_PARTIAL, Time, time_objective
from planner.search.options import SearchOptions, placements_of, ties_of
from planner.search.searchers import ALTERNATIVES, DEAR, FEWER_PLACEMENTS, FREE, MOST_STEPS, SEARCHERS, WITH_PARTIAL
from planner.search.space import Outcome, Space, State

FAR = 3
"""An alternative that moves so many times as much as the search where it has one step, is not tried in several: over
the models of the zoo, several steps save an alternative less than half."""


def search(
    graph: Graph,
    options: SearchOptions,
    coarsenings: Coarsenings | None = None,
    alternatives: Collection[str] = ALTERNATIVES,
) -> Plan:
    """Return the plan that the named searcher finds, or that of what else is tried where it costs less.

    An alternative asked for by name is returned as it is; `joint` is not worse than the recursion with its own ties.
    `Plan.search` is the record of the search. `coarsenings` are the graph's, for searching it again; `alternatives` are
    those that may be tried besides. Raises a PlanError for options that make no sense, a TopologyError for a machine
    that cannot run the plan, a DoesNotFitError where no plan is found that fits.
    """
    started = time.perf_counter()
    placements_of(options)
    check_countable(graph, options.ways)
    known = Coarsenings(graph) if coarsenings is None else coarsenings
    plan = _searched_plan(graph, options, known, alternatives)
    if options.searcher == "joint" and (not plan.search.is_exact or options.ties is not None or options.untie):
        asked = replace(options, searcher="recursive", ties=None, untie=())
        plan = _cheaper_plan(
            plan,
            _searched_plan(graph, asked, known, alternatives),
            in_its_space=options.ties is None and not options.untie,
        )
    return replace(plan, search=with_fields(plan.search, seconds=round(time.perf_counter() - started, 3)))


def _searched_plan(graph: Graph, options: SearchOptions, known: Coarsenings, alternatives: Collection[str]) -> Plan:
    space = space_of(graph, options, known)
    found = _outcomes_by_searcher(space, options, known, alternatives)
    asked = found[options.searcher]
    bound, record = asked.lower_bound, _search_record(options, known, asked)
    if options.memory_bytes is None or options.arena_of is None:
        winner = min(found, key=lambda name: found[name].cost)
    else:
        sizes, plan_of = options.arena_of, partial(_plan_of_choice, graph, options, space)
        names = (options.searcher, "recursive") if options.searcher == "joint" else (options.searcher,)
        again = {name: partial(_searched_outcome, options, name) for name in names}
        found |= {name: ask(space) for name, ask in again.items() if name not in found}
        fit = cheapest_fitting_plan(
            space, found, again, lambda choice: max(sizes(plan_of(choice))), options.memory_bytes
        )
        winner, bound, found = fit.name, fit.lower_bound, {fit.name: fit.outcome}
        record = with_fields(record, memory=fit.allowed)
    choosing = "" if options.searcher in FREE else f"what {options.searcher} may choose, "
    record = record_with_bound(
        _record_with_costs(record, space, found, winner), bound, space, choosing + description_of_space(options, known)
    )
    return _plan_of_choice(graph, options, space, found[winner].choice, record)


def _outcomes_by_searcher(
    space: Space, options: SearchOptions, known: Coarsenings, alternatives: Collection[str]
) -> dict[str, Outcome]:
    """Return what the named searcher finds and, where nothing proves that the least, what else is tried, by name.

    "S" and "S,R" are the searcher with fewer placements, "tied" with all ties, which under "S" the recursion is mostly,
    but not always, better without.
    """
    placements, name = placements_of(options), options.searcher
    found = {name: _searched_outcome(options, name, space)}
    if placements == "S,R,P":
        found["S,R"] = _best_under_other_options(
            space, _options_with_fewer_placements(options, known, "S,R"), known, [name]
        )
    proved = found[name].lower_bound == found[name].cost and options.memory_bytes is None
    if proved or name not in WITH_PARTIAL or len(options.ways) > MOST_STEPS:
        return found
    tried = [one for one in alternatives if one not in DEAR or space.is_small]
    whole = space.without_partial()
    single = replace(whole, ways=(prod(space.ways),), tables=Tables()) if space.objective is BYTES else None
    for other in tried:
        possible = other in SEARCHERS and set(IMPLIED.get(other, "S").split(",")) <= set(placements.split(","))
        if possible and (single is None or _searched_outcome(options, other, single).cost <= FAR * found[name].cost):
            found[other] = _searched_outcome(options, other, whole)
    if FEWER_PLACEMENTS in tried and space.replicate:
        fewer = [name, *(other for other in tried if other in SEARCHERS and other not in IMPLIED)]
        found[FEWER_PLACEMENTS] = _best_under_other_options(
            space, _options_with_fewer_placements(options, known, FEWER_PLACEMENTS), known, fewer
        )
    if placements == "S" and name == "recursive" and options.ties is None and not ties_of(options, known).elementwise:
        found["tied"] = _best_under_other_options(space, replace(options, ties=Ties()), known, [name])
    return found


def _searched_outcome(options: SearchOptions, name: str, space: Space) -> Outcome:
    return SEARCHERS[name](space, options.limits)


def _cheaper_plan(plan: Plan, rival: Plan, *, in_its_space: bool) -> Plan:
    """Return the cheaper plan, with the record of the first; its bound stands only for a rival of its space."""
    one, other = plan.search, rival.search
    record = with_fields(one, bytes={**other.bytes, **one.bytes})
    if other.cost >= one.cost:
        return replace(plan, search=record)
    record = with_fields(record, winner=other.winner, predicted=other.predicted, memory=other.memory)
    record = with_fields(record, bytes={**record.bytes, other.winner: other.bytes[other.winner]})
    if one.lower_bound is None or one.lower_bound > other.cost or not in_its_space:
        known = {} if one.lower_bound is None else {"its_space_has_at_least": one.lower_bound}
        details = {**one.details, **known}
        record = with_fields(record, lower_bound=None, gap=None, bound_by="", space="", details=details)
    else:
        record = with_fields(record, gap=gap_of(other.cost, one.lower_bound))
    return replace(rival, search=record)


def _plan_of_choice(
    graph: Graph, options: SearchOptions, space: Space, choice: Sequence[State], record: SearchRecord | None = None
) -> Plan:
    layouts, strategies = space.layouts(choice), space.strategies(choice)
    return Plan(graph, options.seed, options.ways, layouts, strategies, record or SearchRecord())


def _options_with_fewer_placements(options: SearchOptions, known: Coarsenings, placements: str) -> SearchOptions:
    """Return the options with fewer placements; sums are tied where terms may be kept otherwise."""
    asked = replace(options, placements=placements)
    ties = ties_of(asked, known)
    partial = placements_of(options) == "S,R,P"
    return replace(asked, ties=replace(ties, accumulation=ties.accumulation or partial), untie=())


def _best_under_other_options(space: Space, asked: SearchOptions, known: Coarsenings, names: Iterable[str]) -> Outcome:
    """Return the best that some searchers find among the plans of other options, as one of this space."""
    other = replace(space_of(space.coarse.graph, asked, known), objective=space.objective)
    found = min((_searched_outcome(asked, name, other) for name in names), key=lambda outcome: outcome.cost)
    choice = space.choice_adopted(other, found.choice)
    return replace(found, choice=choice, cost=space.cost(choice))


def space_of(graph: Graph, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Space:
    """Return the space of plans that the options describe."""
    known = Coarsenings(graph) if coarsenings is None else coarsenings
    placements, ties = placements_of(options), ties_of(options, known)
    if "P" not in placements:
        coarse = known.of(ties)
        return Space(
            coarse, options.ways, "R" in placements, objective=_objective_of_options(options, coarse, MOST_TICKS)
        )
    untied = frozenset[str]() if options.ties is not None else may_be_partial(graph, options.ways)
    coarse = known.of(ties, partial=True, untied=untied)
    objective = _objective_of_options(options, coarse, MOST_TICKS_PARTIAL)
    return Space(coarse, options.ways, replicate=True, objective=objective, carriage=carriage_of(coarse, options.ways))


def _objective_of_options(options: SearchOptions, coarse: CoarseGraph, most_ticks: int) -> Objective:
    return BYTES if options.machine is None else time_objective(options.machine, options.ways, coarse, most_ticks)


def _search_record(options: SearchOptions, known: Coarsenings, asked: Outcome) -> SearchRecord:
    return SearchRecord(
        searcher=options.searcher,
        placements=placements_of(options),
        objective=options.objective,
        machine="" if options.machine is None else options.machine.name,
        ties=_applied_ties(options, known),
        bound_by=options.searcher,
        details=dict(asked.details),
    )


def _applied_ties(options: SearchOptions, known: Coarsenings) -> tuple[str, ...]:
    return tuple(rule for rule, on in asdict(ties_of(options, known)).items() if on)


def description_of_space(options: SearchOptions, known: Coarsenings) -> str:
    """Describe the space of plans that a bound is about."""
    ties = ", ".join(_applied_ties(options, known)) or "none"
    return f"placements {placements_of(options)}, ways {product(options.ways)}, ties {ties}"


def record_with_bound(record: SearchRecord, bound: int | None, space: Space, description: str) -> SearchRecord:
    """Return a record with a lower bound, in the space's unit of cost, of all plans of that space."""
    if bound is None:
        return with_fields(record, bound_by="")
    lower = bound * space.objective.tick_s if isinstance(space.objective, Time) else bound
    return with_fields(record, lower_bound=lower, gap=gap_of(record.cost, lower), space=description)


def _record_with_costs(record: SearchRecord, space: Space, found: Mapping[str, Outcome], winner: str) -> SearchRecord:
    """Return the record with every candidate's bytes and, under the objective time, what that predicts."""
    objective, in_bytes = space.objective, replace(space, objective=BYTES)
    if not isinstance(objective, Time):
        return with_fields(record, winner=winner, bytes={name: one.cost for name, one in found.items()})
    domains = [space.domain(v, (state,)) for v, state in enumerate(found[winner].choice)]
    candidates = {name: outcome.cost * objective.tick_s for name, outcome in found.items()}
    where = asdict(objective.breakdown(space.coarse, domains, space.tables))
    predicted = Predicted(tick_s=objective.tick_s, candidates_s=candidates, **where)
    moved = {name: in_bytes.cost(outcome.choice) for name, outcome in found.items()}
    return with_fields(record, winner=winner, bytes=moved, predicted=predicted)
