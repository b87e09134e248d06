"""The papers' recursion taken at its word, and the best that its own accounting allows.

A step is charged as if every tensor were its stored share of what it was (Tofu Lemma 2): what earlier steps made a
group fetch is forgotten. Shares shrink alike where nothing is replicated; under S,R they do not.
"""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from planner.layout import REPLICATE, Ways
from planner.search import SEARCHERS, Limits, Outcome, Space
from planner.search.coarse import CoarseGraph, TensorVariable
from planner.search.costs.domains import Layouts, Strategies, choices_at_step, placements_at_step
from planner.search.costs.tables import Tables
from planner.search.joint import best_plan_among_candidates
from planner.search.solver import minimise
from planner.search.solver.model import Model
from planner.search.solver.problem import Problem

State = tuple[Any, ...]
"""What a variable is given at every step: placements or choices of a strategy."""

LIMITS = Limits()


def exact(space: Space, name: str) -> Outcome:
    """Return what one of the planner's searchers finds."""
    return SEARCHERS[name].search(space, LIMITS)


def at_its_word(space: Space) -> tuple[list[State], list[int]]:
    """Return the choice of the recursion that charges as Lemma 2 does, and what it believes that each step costs."""
    choice: list[State] = [()] * len(space.coarse.variables)
    believed = []
    for step, way in enumerate(space.ways):
        single = Space(_shares(space, choice, step), Ways((way,)), space.replicate)
        outcome = best_plan_among_candidates(
            single, [[(option,) for option in _options(space, v, step)] for v in range(len(choice))], LIMITS
        )
        choice = [(*before, *now) for before, now in zip(choice, outcome.choice, strict=True)]
        believed.append(outcome.cost)
    return choice, believed


def _options(space: Space, v: int, step: int) -> State:
    """Return what a variable may be given at a step."""
    variable = space.coarse.variables[v]
    if isinstance(variable, TensorVariable):
        return placements_at_step(variable.shape, space.ways, step, replicate=space.replicate)
    return choices_at_step(variable.signature, space.ways, step, replicate=space.replicate)


def _shares(space: Space, choice: list[State], steps: int) -> CoarseGraph:
    """Return the graph whose tensors weigh what all groups together store of them after some steps."""
    copies = [
        int(np.prod([space.ways[step] for step in range(steps) if choice[v][step] == REPLICATE], dtype=np.int64))
        for v in range(len(choice))
    ]
    factors = tuple(replace(factor, weight=factor.weight * copies[factor.scope[-1]]) for factor in space.coarse.factors)
    return replace(space.coarse, factors=factors)


def best_in_its_own_account(space: Space) -> int:
    """Return the least sum of two steps' costs by Lemma 2, over all plans of two steps."""
    coarse, (way, _) = space.coarse, space.ways
    single = Space(coarse, Ways((way,)), space.replicate)
    domains = [single.domain(v, single.candidates(v)) for v in range(len(coarse.variables))]
    pairs = [np.array(list(product(range(len(domain.states)), repeat=2))) for domain in domains]
    tables, terms = Tables(), []
    for factor in coarse.factors:
        *nodes, tensor = (domains[v] for v in factor.scope)
        costs = factor.cost.table(cast("list[Strategies]", nodes), cast("Layouts", tensor)) * factor.weight
        first = costs[np.ix_(*(pairs[v][:, 0] for v in factor.scope))]
        second = costs[np.ix_(*(pairs[v][:, 1] for v in factor.scope))]
        stored = [domains[factor.scope[-1]].states[at][0] for at in pairs[factor.scope[-1]][:, 0]]
        copies = np.array([way if place == REPLICATE else 1 for place in stored])
        order = sorted(factor.scope)
        number = tables.with_axes_arranged(
            tables.intern(first + copies * second), tuple(map(order.index, factor.scope))
        )
        terms.append((tuple(order), number))
    problem = Problem(tables, tuple(map(len, pairs)), tuple(terms))
    return minimise(Model(problem), LIMITS).value


def equal_chop(choice: list[State], space: Space) -> bool:
    """Whether every tensor is split along one dimension only."""
    tensors = [state for state, v in zip(choice, space.coarse.variables, strict=True) if isinstance(v, TensorVariable)]
    return all(len(set(state)) <= 1 for state in tensors)
