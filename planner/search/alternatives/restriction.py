"""Restricting what variables may choose, step by step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from planner.search.joint import over
from planner.search.space import Limits, Outcome, Space, State

Wanted = Collection[object]
"""The placements of a tensor, or the choices of an operator, that a restriction allows at one step."""

Alternatives = Sequence[Sequence[Wanted]]
"""What a variable may keep to, one or the other; each says what is wanted at every step."""

Rule = Callable[[int], Alternatives]
"""The alternatives of a variable, given its number."""


def restricted(space: Space, rule: Rule, limits: Limits) -> Outcome:
    """Return the best plan in which every variable keeps to one of its alternatives."""
    return over(space, [_kept(space, v, rule(v)) for v in range(len(space.coarse.variables))], limits)


def _kept(space: Space, v: int, alternatives: Alternatives) -> list[State]:
    """Return the states that keep to one of the alternatives, of those that can be kept at most steps."""
    states = space.candidates(v)
    steps = options_by_step(states)
    possible = [[_possible(options, at) for options, at in zip(steps, wanted, strict=True)] for wanted in alternatives]
    most = max((sum(map(bool, wanted)) for wanted in possible), default=0)
    best = [wanted for wanted in possible if sum(map(bool, wanted)) == most]
    return list(dict.fromkeys(state for wanted in best for state in _keeping(states, wanted))) or list(states)


def _possible(options: Sequence[object], wanted: Wanted) -> set[object]:
    return {option for option in options if option in wanted}


def _keeping(states: Sequence[State], wanted: Sequence[set[object]]) -> list[State]:
    """Return the states that choose what is wanted at every step where that is anything."""
    return [state for state in states if all(not at or option in at for option, at in zip(state, wanted, strict=True))]


def options_by_step(states: Sequence[State]) -> list[list[object]]:
    """Return what can be chosen at every step."""
    return [list(dict.fromkeys(options)) for options in zip(*states, strict=True)]
