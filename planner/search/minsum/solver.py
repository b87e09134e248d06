"""Solve a min-sum problem: exactly where tables stay within limits, else the best choice found with a lower bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.search.minsum.bounded import Solution, Tightening
from planner.search.minsum.components import merge
from planner.search.minsum.deadends import DeadEnds
from planner.search.minsum.elimination import Order, order_of, solve
from planner.search.minsum.limits import Limits
from planner.search.minsum.merged import Representatives
from planner.search.minsum.model import Dense, Model
from planner.search.minsum.problem import Problem, compacted

SMALL_OPERATIONS = 1e6
"""Work below which reducing a problem takes longer than it saves."""

DIRECT_OPERATIONS = 1e9
"""Work below which bounding a problem takes longer than it saves."""


def minimise(problem: Problem, limits: Limits, incumbent: Sequence[int] | None = None) -> Solution:
    """Return the best choice found; exact (bound = value) where tables and work stay within the limits.

    `incumbent` is a choice known beforehand.
    """
    order = order_of(problem, SMALL_OPERATIONS)
    if order.fits(limits.memory_bytes, min(SMALL_OPERATIONS, limits.operations)):
        return _exactly(problem, order)
    fewer, merged = merge(problem)
    pruned, kept = DeadEnds(fewer.tables).prune(fewer)
    pruned = compacted(pruned)
    order = order_of(pruned, DIRECT_OPERATIONS)

    def expand(states: Sequence[int]) -> tuple[int, ...]:
        return tuple(merged.expand([of[state] for of, state in zip(kept, states, strict=True)]))

    if order.fits(limits.memory_bytes, min(DIRECT_OPERATIONS, limits.operations)):
        found = _exactly(pruned, order)
    else:
        found = Tightening(Dense(pruned), limits).run()
    states = expand(found.states)
    if incumbent is not None and problem.value(incumbent) < found.value:
        states = tuple(incumbent)
    return Solution(states, problem.value(states), found.bound, found.width, found.largest_table_bytes)


def minimise_model(
    model: Model, limits: Limits, starts: Iterable[Sequence[int]] = (), groups: Representatives | None = None
) -> Solution:
    """Return the best choice found for a model; `starts` are choices known beforehand, more than one only if needed.

    `groups` says of every variable which states may stand for which.
    """
    return Tightening(model, limits, starts, groups).run()


def _exactly(problem: Problem, order: Order) -> Solution:
    states = solve(compacted(problem), order)
    value = problem.value(states)
    return Solution(tuple(states), value, value, order.width, order.largest_bytes)
