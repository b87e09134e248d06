"""Solve a min-sum problem: exactly where tables stay within limits, else the best choice found with a lower bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from planner.search.minsum.bounded import Solution, Tightening
from planner.search.minsum.coarse_to_fine import coarse_to_fine
from planner.search.minsum.components import merge
from planner.search.minsum.deadends import DeadEnds
from planner.search.minsum.elimination import Order, order_of, solve
from planner.search.minsum.limits import Limits
from planner.search.minsum.merged import Representatives
from planner.search.minsum.model import Dense, Kept, Model
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
    model: Model,
    limits: Limits,
    starts: Iterable[Sequence[int]] = (),
    representatives: Callable[[], Representatives] | None = None,
) -> Solution:
    """Return the best choice found for a model; `starts` are choices known beforehand, more than one only if needed.

    `representatives` says of every variable which states may stand for which; it is asked if that may matter.
    """
    before, starts = time.process_time(), iter(starts)
    whole = Tightening(model, limits, starts)
    if representatives is None or whole.at_once():
        return whole.run()
    narrowed = coarse_to_fine(model, representatives, whole.colours, whole.choices, limits)
    if narrowed.kept is None or narrowed.lower >= whole.choices.cost:
        return whole.run(narrowed.lower)
    limits = replace(limits, seconds=limits.seconds - (time.process_time() - before))
    kept, known = narrowed.kept, chain((whole.choices.best,), starts)
    found = Tightening(model.restricted(kept), limits, _among(kept, known)).run(narrowed.lower)
    return replace(found, states=tuple(of[state] for of, state in zip(kept, found.states, strict=True)))


def _among(kept: Kept, choices: Iterable[Sequence[int]]) -> Iterator[list[int]]:
    """Yield those choices that are among what is kept, in its numbers."""
    for states in choices:
        if all(state in of for of, state in zip(kept, states, strict=True)):
            yield [of.index(state) for of, state in zip(kept, states, strict=True)]


def _exactly(problem: Problem, order: Order) -> Solution:
    states = solve(compacted(problem), order)
    value = problem.value(states)
    return Solution(tuple(states), value, value, order.width, order.largest_bytes)
