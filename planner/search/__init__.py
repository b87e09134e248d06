"""The search: a graph and the ways to split it in, the plan that moves the fewest bytes (or takes least time) out.

Searchers share one signature and sit in one dict, `SEARCHERS`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.plan import Plan, check_countable
from planner.search import alternatives, ilp, joint, recursive
from planner.search.carriage import carriage, may_be_partial
from planner.search.coarsen import CoarseGraph, Coarsenings, TensorVariable, Ties
from planner.search.memory import fitted
from planner.search.objective import BYTES, Objective
from planner.search.space import Limits, Outcome, Searcher, Space, State
from planner.search.timing import MOST_TICKS, MOST_TICKS_PARTIAL, Time, time_on
from topologies import Machine

__all__ = [
    "OBJECTIVES", "SEARCHERS", "Limits", "Outcome", "SearchOptions", "Searcher", "Space", "Ties", "search", "space_of",
]  # fmt: skip

SEARCHERS: dict[str, Searcher] = {
    "recursive": recursive.recursive,
    "joint": joint.joint,
    "ilp": ilp.ilp,
    "allrow": alternatives.allrow,
    "spartan": alternatives.spartan,
    "equalchop": alternatives.equalchop,
    "icml18": alternatives.icml18,
    "data-parallel": alternatives.data_parallel,
    "model-parallel": alternatives.model_parallel,
    "hybrid": alternatives.hybrid,
    "one-weird-trick": alternatives.one_weird_trick,
}

PLACEMENTS = ("S", "S,R", "S,R,P")

OBJECTIVES = ("bytes", "time")

PARTIAL = ("recursive", "joint")
"""The searchers that let tensors be partial."""

HEURISTICS = {"S": ("equalchop",), "S,R": ("equalchop", "data-parallel"), "S,R,P": ("equalchop", "data-parallel")}
"""What is tried besides a search that is not exact; for a small graph, every alternative is."""

SMALL_STATES = 2000
"""Up to so many states of all variables together a graph is small: all alternatives together take about 0.1 s."""

HEURISTIC_STEPS = 4
"""With more steps than this, heuristics are tried only by name: they look at whole plans of every variable."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What to search for.

    `ways` are the parts of each step; `placements` is "S" (every tensor is split at every step where it can be),
    "S,R" (or replicated) or "S,R,P" (or left as partial sums where some reader can carry them on: `carriage`; for
    `recursive` and `joint`). Data, model and hybrid parallelism and the one weird trick replicate: they search "S,R"
    where "S" is asked for, and the plan's report says so. `ties` are the coarsening rules (default: all; under "S,R"
    all but `updates`; under "S,R,P" element-wise operators do not tie what may be partial, either);
    `untie` names those to do without. `objective` is "bytes" or, on a `machine`, "time";
    `memory_bytes` is what every worker's arena must fit in, as lowered with `prefetch` 1.
    """

    ways: tuple[int, ...]
    name: str = "recursive"
    placements: str = "S"
    ties: Ties | None = None
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    untie: tuple[str, ...] = ()
    objective: str = "bytes"
    machine: Machine | None = None
    memory_bytes: int | None = None


def search(graph: Graph, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Plan:
    """Return the plan that the named searcher finds, or a heuristic's where that costs less (to 4 steps).

    An alternative asked for by name is returned as it is. `Plan.search` says what was asked for, which searcher won,
    every candidate's bytes (and predicted seconds), a lower bound for what the asked-for searcher may choose from and
    the gap to it (where it knows one), seconds and table sizes. Raises a PlanError for options that make no sense, a
    TopologyError for a machine that cannot run the plan, a DoesNotFitError where no plan is found that fits.
    `coarsenings` are the graph's, for searching it again.
    """
    started = time.perf_counter()
    placements = _checked(options)
    check_countable(graph, options.ways)
    known = Coarsenings(graph) if coarsenings is None else coarsenings
    space = space_of(graph, options, known)
    found = {options.name: SEARCHERS[options.name](space, options.limits)}
    if placements == "S,R,P" and options.ties is None:
        tied = replace(space_of(graph, replace(options, placements="S,R"), known), objective=space.objective)
        found["S,R"] = _nothing_partial(space, tied, options)
    inexact = found[options.name].lower_bound != found[options.name].cost
    if options.name in ("recursive", "joint") and inexact and len(options.ways) <= HEURISTIC_STEPS:
        for name in _heuristics(space, placements):
            found[name] = SEARCHERS[name](space.without_partial(), options.limits)
    plan = partial(_plan, graph, options, space)
    winner, bound = min(found, key=lambda name: found[name].cost), found[options.name].lower_bound
    details: dict[str, Any] = dict(found[options.name].details)
    if options.memory_bytes is not None:
        again = partial(_again, options)
        fit = fitted(space, found, (options.name, again), plan, options.memory_bytes)
        winner, bound, details["memory"] = fit.name, fit.lower_bound, fit.report
        found = {winner: fit.outcome}
    report = _report(options, placements, found[winner], bound) | {"winner": winner, **details}
    report |= _costs(space, found, bound, winner) | {"seconds": round(time.perf_counter() - started, 3)}
    return plan(found[winner].choice, report)


def _again(options: SearchOptions, space: Space) -> Outcome:
    return SEARCHERS[options.name](space, options.limits)


def _plan(
    graph: Graph, options: SearchOptions, space: Space, choice: Sequence[State], report: Mapping[str, Any] | None = None
) -> Plan:
    layouts, strategies = space.layouts(choice), space.strategies(choice)
    return Plan(graph, options.seed, options.ways, layouts, strategies, report or {})


def _heuristics(space: Space, placements: str) -> Sequence[str]:
    """Return the alternatives to try besides a search that is not exact."""
    if space.without_partial().states > SMALL_STATES:
        return HEURISTICS[placements]
    exact = ("recursive", "joint", "ilp")
    return [name for name in SEARCHERS if name not in exact and alternatives.IMPLIED.get(name, "S") in placements]


def _nothing_partial(space: Space, tied: Space, options: SearchOptions) -> Outcome:
    """Return what the same searcher finds where nothing is partial, under the ties that this allows."""
    found = SEARCHERS[options.name](tied, options.limits)
    of = tied.coarse.variable_of
    names = (
        ("tensor" if isinstance(variable, TensorVariable) else "node", variable.members[0])
        for variable in space.coarse.variables
    )
    return replace(found, choice=tuple(found.choice[of[name]] for name in names))


def space_of(graph: Graph, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Space:
    """Return the space of plans that the options describe."""
    placements, ties = _checked(options), _ties(options)
    known = Coarsenings(graph) if coarsenings is None else coarsenings
    if "P" not in placements:
        coarse = known.of(ties)
        return Space(coarse, options.ways, "R" in placements, objective=_objective(options, coarse, MOST_TICKS))
    untied = frozenset[str]() if options.ties is not None else may_be_partial(graph, options.ways)
    coarse = known.of(ties, partial=True, untied=untied)
    objective = _objective(options, coarse, MOST_TICKS_PARTIAL)
    return Space(coarse, options.ways, replicate=True, objective=objective, carriage=carriage(coarse, options.ways))


def _objective(options: SearchOptions, coarse: CoarseGraph, most_ticks: int) -> Objective:
    return BYTES if options.machine is None else time_on(options.machine, options.ways, coarse, most_ticks)


def _ties(options: SearchOptions) -> Ties:
    """Return the coarsening rules that apply."""
    ties = options.ties if options.ties is not None else Ties(updates="R" not in _checked(options))
    return replace(ties, **dict.fromkeys(options.untie, False))


def _checked(options: SearchOptions) -> str:
    """Return the placement set: what is asked for, and what the searcher implies."""
    if options.name not in SEARCHERS:
        raise PlanError(f"expected a searcher among {', '.join(SEARCHERS)}, found {options.name!r}")
    if options.objective not in OBJECTIVES:
        raise PlanError(f"expected an objective among {', '.join(OBJECTIVES)}, found {options.objective!r}")
    if (options.objective == "time") != (options.machine is not None):
        machine = "none" if options.machine is None else options.machine.name
        raise PlanError(f"objective {options.objective}: expected a machine with time, and only there, found {machine}")
    wanted = {part.strip() for part in options.placements.split(",")}
    if wanted not in ({"S"}, {"S", "R"}, {"S", "R", "P"}):
        raise PlanError(f"expected placements {' or '.join(PLACEMENTS)}, found {options.placements!r}")
    if "P" in wanted and options.name not in PARTIAL:
        raise PlanError(f"expected a searcher among {', '.join(PARTIAL)} for placements S,R,P, found {options.name!r}")
    if any(not isinstance(way, int) or isinstance(way, bool) or way < 2 for way in options.ways):
        raise PlanError(f"expected ways of at least 2 each, found {options.ways!r}")
    if "P" in wanted:
        return "S,R,P"
    return "S,R" if "R" in wanted else alternatives.IMPLIED.get(options.name, "S")


def _report(options: SearchOptions, placements: str, best: Outcome, bound: int | None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "name": options.name,
        "placements": placements,
        "objective": options.objective,
        "ties": [rule for rule, on in asdict(_ties(options)).items() if on],
    }
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
