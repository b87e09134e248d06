"""The solver's model: an exact view of a problem over few states, and a pairwise lower bound over all states.

Tables of three and more variables are large, and most of their states are never needed. The pairwise view bounds and
prunes; the exact view is restricted to the states that are left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from math import prod

from msgspec import Struct

from planner.search.costs.tables import Scope, Tables, Term
from planner.search.solver.elimination import colours_of_variables
from planner.search.solver.problem import Problem, problem_in_own_store, restricted_problem, simplified_problem

# Pairwise relaxations: lower bounds on terms of three and more variables, as terms of two.


def pairwise_relaxation(problem: Problem) -> Problem:
    """Return a problem with terms of at most two variables in which no choice costs more.

    A large term first absorbs the terms within its scope. Its cost is then divided equally among the pairs of one of
    its variables with the others; the variable is the one for which this loses least.
    """
    whole = problem_with_small_terms_absorbed(problem)
    terms: list[Term] = []
    for scope, number in whole.terms:
        if len(scope) <= 2:
            terms.append((scope, number))
            continue
        for axes, part in _pairs_that_lose_least(problem.tables, number):
            terms.append(((scope[axes[0]], scope[axes[1]]), part))
    return simplified_problem(Problem(problem.tables, problem.sizes, tuple(terms), problem.constant))


def _pairs_that_lose_least(tables: Tables, number: int) -> list[tuple[tuple[int, int], int]]:
    rank = tables[number].ndim
    stars = []
    for common in range(rank):
        pairs = [(min(axis, common), max(axis, common)) for axis in range(rank) if axis != common]
        stars.append([(pair, tables.minimum_over_other_axes(number, pair, rank - 1)) for pair in pairs])
    return max(stars, key=lambda parts: sum(float(tables[part].mean()) for _, part in parts))


def problem_with_small_terms_absorbed(problem: Problem) -> Problem:
    """Return the same problem with terms of several variables added to the first larger term that spans theirs."""
    large: dict[Scope, list[tuple[Scope, int]]] = {}
    spanning: dict[int, list[Scope]] = defaultdict(list)
    left: list[Term] = []
    for scope, number in sorted(problem.terms, key=lambda term: -len(term[0])):
        home = next((other for other in spanning[scope[0]] if set(scope) < set(other)), None) if scope else None
        if home is not None and len(scope) > 1:
            large[home].append((scope, number))
        elif scope in large:
            large[scope].append((scope, number))
        elif len(scope) > 2:
            large[scope] = [(scope, number)]
            for v in scope:
                spanning[v].append(scope)
        else:
            left.append((scope, number))
    for scope, parts in large.items():
        places = tuple((number, tuple(scope.index(v) for v in part)) for part, number in parts)
        left.append((scope, problem.tables.sum_of_terms(places, len(scope))))
    return Problem(problem.tables, problem.sizes, tuple(sorted(left)), problem.constant)


# The solver's model.


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
