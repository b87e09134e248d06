"""Solving a problem exactly: dominated states dropped, the rest eliminated, isomorphic variables in lockstep."""

from __future__ import annotations

from dataclasses import dataclass

from planner.search.solver.dominance import Dominance
from planner.search.solver.elimination import Order, greedy_order_of_problem, states_of_least_cost
from planner.search.solver.isomorphism import lockstep_order
from planner.search.solver.limits import Limits
from planner.search.solver.problem import Problem, problem_in_own_store


@dataclass(frozen=True, slots=True)
class Optimum:
    """A state per variable of least cost, and the elimination order that proved it."""

    states: tuple[int, ...]
    order: Order


def optimal_choice(problem: Problem, limits: Limits, operations: float) -> Optimum | None:
    """Return a choice of least cost, None where that takes more additions than given or the limits allow."""
    tuning, most = limits.tuning, min(operations, limits.operations)
    order = greedy_order_of_problem(problem, tuning.small_operations)
    if order.fits_limits(limits.memory_bytes, min(tuning.small_operations, most)):
        return Optimum(tuple(states_of_least_cost(problem_in_own_store(problem), order)), order)
    fewer, alive = Dominance(problem.tables).prune_dominated_states(problem)
    order = greedy_order_of_problem(fewer, tuning.quick_operations)
    if not order.fits_limits(limits.memory_bytes, min(tuning.quick_operations, most)):
        order = lockstep_order(fewer.sizes, fewer.terms, most, tuning)
        if not order.fits_limits(limits.memory_bytes, most):
            return None
    states = states_of_least_cost(problem_in_own_store(fewer), order)
    return Optimum(tuple(of[state] for of, state in zip(alive, states, strict=True)), order)
