"""Solve a problem exactly by variable elimination, isomorphic variables in lockstep."""

from __future__ import annotations

from planner.search.solver.elimination import Order, greedy_order_of_problem, states_of_least_cost
from planner.search.solver.isomorphism import lockstep_order
from planner.search.solver.limits import Limits
from planner.search.solver.problem import Problem, problem_in_own_store


def optimal_choice(problem: Problem, limits: Limits, operations: float) -> tuple[list[int], Order] | None:
    """Return a state per variable of least cost, and the elimination order that proves it.

    Return None if that takes more additions than `operations` or than the limits allow.
    """
    tuning, most = limits.tuning, min(operations, limits.operations)
    order = greedy_order_of_problem(problem, tuning.quick_operations)
    if not order.fits_limits(limits.memory_bytes, min(tuning.quick_operations, most)):
        order = lockstep_order(problem.sizes, problem.terms, most, tuning)
        if not order.fits_limits(limits.memory_bytes, most):
            return None
    stored = problem if order.entries <= tuning.few_entries else problem_in_own_store(problem)
    return states_of_least_cost(stored, order), order
