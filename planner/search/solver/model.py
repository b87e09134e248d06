"""The solver's model: an exact view of a problem over few states, and a pairwise lower bound over all states.

Tables of three and more variables are large, and most of their states are never needed. The pairwise view bounds and
prunes; the exact view is restricted to the states that are left.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from math import prod

from msgspec import Struct

from planner.search.costs.tables import Scope, Term
from planner.search.solver.isomorphism import colours_of_variables
from planner.search.solver.problem import (
    Problem,
    problem_in_own_store,
    restricted_problem,
    simplified_problem,
)
from planner.search.solver.relaxation import pairwise_relaxation

ALIKE_ROUNDS = 2
"""Two variables have one colour if they are indistinguishable within this many terms."""

OpenStates = Sequence[tuple[int, ...]]
"""The open states of every variable: those still to choose from."""


class Outline(Struct, frozen=True):
    """Shape of a problem whose tables are not computed: equal numbers stand for equal tables.

    `entries` is the number of entries of all distinct tables.
    """

    sizes: tuple[int, ...]
    terms: tuple[Term, ...]
    entries: int

    @classmethod
    def of_keyed_terms(cls, sizes: Sequence[int], keyed: Iterable[tuple[Scope, Hashable]]) -> Outline:
        """Return the outline of terms with given scopes and keys; equal keys mean equal tables."""
        numbers: dict[Hashable, int] = {}
        scopes: dict[int, Scope] = {}
        terms = []
        for scope, key in keyed:
            number = numbers.setdefault((key, tuple(sizes[v] for v in scope)), len(numbers))
            scopes.setdefault(number, scope)
            terms.append((scope, number))
        return cls(tuple(sizes), tuple(terms), sum(prod(sizes[v] for v in scope) for scope in scopes.values()))


class Model:
    """A problem in two views: exact over few states, and pairwise over all, in which no choice costs more."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.sizes = problem, problem.sizes
        self.scopes = [scope for scope, _ in problem.terms]

    @cached_property
    def colours_of_variables(self) -> list[int]:
        """A colour per variable; variables of one colour are indistinguishable."""
        return colours_of_variables(self.sizes, self.problem.terms, ALIKE_ROUNDS)

    @cached_property
    def relaxed_problem(self) -> Problem:
        """The pairwise view, over all states."""
        pairwise = all(len(scope) <= 2 for scope in self.scopes)
        return self.problem if pairwise else problem_in_own_store(pairwise_relaxation(self.problem))

    def outline_of_problem(self, open_states: OpenStates) -> Outline:
        """Return the outline of the problem over some states."""
        if not restricted_states(open_states, self.sizes):
            tables, terms = self.problem.tables, self.problem.terms
            return Outline(self.sizes, terms, sum(tables[number].size for number in {number for _, number in terms}))
        keys = ((number, *(open_states[v] for v in scope)) for scope, number in self.problem.terms)
        return Outline.of_keyed_terms([len(states) for states in open_states], zip(self.scopes, keys, strict=True))

    def exact_problem(self, open_states: OpenStates) -> Problem:
        """Return the problem over some states of every variable."""
        some_of = restricted_states(open_states, self.sizes)
        return (
            problem_in_own_store(simplified_problem(restricted_problem(self.problem, some_of)))
            if some_of
            else self.problem
        )

    def restricted_model(self, open_states: OpenStates) -> Model:
        """Return the model of choosing among some states of every variable."""
        return Model(self.exact_problem(open_states))

    def value(self, states: Sequence[int]) -> int:
        """Return the cost of one state per variable."""
        return self.problem.value(states)


def restricted_states(open_states: OpenStates, sizes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the variables that keep only some of their states, with these states."""
    return {v: states for v, (states, size) in enumerate(zip(open_states, sizes, strict=True)) if len(states) < size}
