"""Solving a problem exactly: dominated states dropped, the rest eliminated, isomorphic variables in lockstep."""

from __future__ import annotations

from dataclasses import dataclass

from planner.search.solver.dominance import Dominance
from planner.search.solver.elimination import Order, best_states, order_of
from planner.search.solver.isomorphism import lockstep_order
from planner.search.solver.limits import Limits
from planner.search.solver.problem import Problem, compacted_problem


@dataclass(frozen=True, slots=True)
class Optimum:
    """A state per variable of least cost, and the elimination order that proved it."""

    states: tuple[int, ...]
    order: Order


def optimal_choice(problem: Problem, limits: Limits, operations: float) -> Optimum | None:
    """Return a choice of least cost, None where that takes more additions than given or the limits allow."""
    tuning, most = limits.tuning, min(operations, limits.operations)
    order = order_of(problem, tuning.small_operations)
    if order.fits_limits(limits.memory_bytes, min(tuning.small_operations, most)):
        return Optimum(tuple(best_states(compacted_problem(problem), order)), order)
    fewer, alive = Dominance(problem.tables).prune_dominated_states(problem)
    order = order_of(fewer, tuning.quick_operations)
    if not order.fits_limits(limits.memory_bytes, min(tuning.quick_operations, most)):
        order = lockstep_order(fewer.sizes, fewer.terms, most, tuning)
        if not order.fits_limits(limits.memory_bytes, most):
            return None
    states = best_states(compacted_problem(fewer), order)
    return Optimum(tuple(of[state] for of, state in zip(alive, states, strict=True)), order)
