"""Greedy tiling, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.search.coarse.coarsen import TensorVariable
from planner.search.costs.tables import Term
from planner.search.joint import best_plan_among_candidates
from planner.search.solver.elimination import eliminate_variables, greedy_order
from planner.search.solver.limits import Limits
from planner.search.solver.problem import Problem, terms_by_variable
from planner.search.space import Outcome, Space


def spartan(space: Space, limits: Limits) -> Outcome:
    """Decide tensors one after the other, the largest first; then every operator does what is cheapest.

    The greedy search of Spartan (Huang and others, USENIX ATC 2015), with which Tofu compares itself (Figure 10). A
    tensor gets the layout, over all steps, at which the operators that read or write it cost least; of their other
    tensors, those decided before count as they lie, and those still undecided as they would suit best. Decisions are
    never revised. Operators are exact once all tensors are decided.
    """
    variables = space.coarse.variables
    candidates = [space.candidates(v) for v in range(len(variables))]
    problem = space.problem(candidates)
    tensors = space.coarse.graph.tensors
    sizes = {
        v: max(tensors[name].nbytes for name in of.members)
        for v, of in enumerate(variables)
        if isinstance(of, TensorVariable)
    }
    around = terms_by_variable(problem.terms, len(variables))
    decided: dict[int, int] = {}
    for v in sorted(sizes, key=sizes.__getitem__, reverse=True):
        operators = {u for position in around[v] for u in problem.terms[position][0]} - sizes.keys()
        positions = {position for u in (v, *operators) for position in around[u]}
        terms = [problem.terms[position] for position in sorted(positions)]
        decided[v] = _cheapest_state_of_tensor(problem, [v, *sorted(operators)], terms, decided)
    for v, state in decided.items():
        candidates[v] = (space.domain(v, candidates[v]).states[state],)
    outcome = best_plan_among_candidates(space, candidates, limits)
    return Outcome(outcome.choice, outcome.cost, None, outcome.details)


def _cheapest_state_of_tensor(problem: Problem, free: list[int], terms: list[Term], decided: Mapping[int, int]) -> int:
    """Return the state of the first free variable at which the terms cost least, the other free ones at their best.

    Terms are taken at the states of decided variables, and at their lowest over all others.
    """
    place = {v: number for number, v in enumerate(free)}
    tables, local = problem.tables, []
    for scope, number in terms:
        fixed = tables.restricted_to_states(number, tuple((decided[v],) if v in decided else None for v in scope))
        axes = tuple(axis for axis, v in enumerate(scope) if v in place)
        placed = tuple(place[scope[axis]] for axis in axes)
        local.append(
            (tuple(sorted(placed)), tables.with_axes_arranged(tables.minimum_over_other_axes(fixed, axes, 1), placed))
        )
    sizes = tuple(problem.sizes[v] for v in free)
    order = greedy_order(sizes, [scope for scope, _ in local]).variables
    left = eliminate_variables(Problem(tables, sizes, tuple(local)), [v for v in order if v != 0]).remaining
    total = np.zeros(sizes[0], dtype=np.int64)
    for scope, number in left.terms:
        total += tables[number] if scope else 0
    return int(total.argmin())
