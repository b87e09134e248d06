"""Restrict what variables may choose at each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import product
from math import prod

from planner.layout import PARTIAL
from planner.search.costs.domains import operands_carried_by_choice
from planner.search.joint import best_plan_among_candidates
from planner.search.solver.limits import Limits
from planner.search.solver.minimise import minimise
from planner.search.solver.model import Model
from planner.search.space import Outcome, Space, State

Wanted = Collection[object]
"""Placements of a tensor, or choices of an operator, allowed at one step."""

Patterns = Sequence[Sequence[Wanted]]
"""Alternative patterns of a variable; a pattern gives the allowed choices at every step."""

Rule = Callable[[int], Patterns]
"""Maps a variable's number to its patterns."""

DIRECT_ENTRIES = 1 << 12
"""If no table has more entries, build all tables at once: bounding and pruning first would cost more than it saves."""


def best_plan_keeping_to_patterns(space: Space, rule: Rule, limits: Limits) -> Outcome:
    """Return the best plan in which every variable keeps to one of its patterns."""
    candidates = [_states_keeping_to_patterns(space, v, rule(v)) for v in range(len(space.coarse.variables))]
    scopes = (set(factor.scope) for factor in space.coarse.factors)
    if max((prod(len(candidates[v]) for v in scope) for scope in scopes), default=0) > DIRECT_ENTRIES:
        return best_plan_among_candidates(space, candidates, limits)
    domains = [space.domain(v, states) for v, states in enumerate(candidates)]
    return Outcome.of_solution(domains, minimise(Model(space.problem_of_domains(domains)), limits))


def _states_keeping_to_patterns(space: Space, v: int, patterns: Patterns) -> list[State]:
    """Return the states that satisfy one of the patterns.

    Only patterns satisfiable at the most steps are considered.
    """
    steps: list[Sequence[object]] = [*space.options_at_every_step(v)]
    possible: list[list[Sequence[object]]] = [
        [[option for option in options if option in at] for options, at in zip(steps, wanted, strict=True)]
        for wanted in patterns
    ]
    most = max((sum(map(bool, kept)) for kept in possible), default=0)
    best = [kept for kept in possible if sum(map(bool, kept)) == most] or [steps]
    choices = ([[*(at or options), *_terms(options)] for at, options in zip(kept, steps, strict=True)] for kept in best)
    return list(dict.fromkeys(state for kept in choices for state in product(*kept)))


def _terms(options: Sequence[object]) -> list[object]:
    """Return the options that add up terms before they move; no rule forbids these."""
    return [option for option in options if option == PARTIAL or operands_carried_by_choice(str(option))]
