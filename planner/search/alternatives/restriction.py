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
    states = space.candidates(v)
    found = dict.fromkeys(state for wanted in alternatives for state in _keeping(states, wanted))
    return list(found) or list(states)


def _keeping(states: Sequence[State], wanted: Sequence[Wanted]) -> list[State]:
    """Return the states that choose what is wanted at every step where it can be chosen."""
    allowed = [
        {option for option in options if option in at_step} or set(options)
        for options, at_step in zip(options_by_step(states), wanted, strict=True)
    ]
    return [state for state in states if all(map(set.__contains__, allowed, state))]


def options_by_step(states: Sequence[State]) -> list[list[object]]:
    """Return what can be chosen at every step."""
    return [list(dict.fromkeys(options)) for options in zip(*states, strict=True)]
