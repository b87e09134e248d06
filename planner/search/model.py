"""What the solver works on: an exact view of a problem over few states, and a pairwise one never above it over all.

Tables of three and more variables are large, and most of their states are never needed. So the pairwise view bounds
and prunes, and the exact one is built for the states that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from planner.search.coarsen import CoarseGraph
from planner.search.domains import Domain
from planner.search.objective import Bytes, Objective
from planner.search.problem import Problem, build, compacted, restricted, simplified
from planner.search.relaxation import halved, is_shared, relax
from planner.search.tables import Scope, Tables

Kept = Sequence[tuple[int, ...]]
"""The states of every variable that are still to be chosen from."""


class Model(Protocol):
    """A problem in two views; `relaxed` costs at most `scale` times what `exact` does, at any choice."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many states every variable has."""
        ...

    @property
    def scopes(self) -> list[Scope]:
        """The variables of every exact term."""
        ...

    @property
    def scale(self) -> int:
        """How many times the exact cost the relaxed one is counted."""
        ...

    @property
    def relaxed(self) -> Problem:
        """The pairwise view, over all states."""
        ...

    def exact(self, kept: Kept) -> Problem:
        """Return the problem over some states of every variable, in a store of its own."""
        ...

    def value(self, states: Sequence[int]) -> int:
        """Return the cost of one state per variable."""
        ...


class Dense:
    """A model whose tables are all there."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.sizes, self.scale = problem.sizes, 1
        self.scopes = [scope for scope, _ in problem.terms]
        pairwise = all(len(scope) <= 2 for scope in self.scopes)
        self.relaxed = problem if pairwise else compacted(relax(problem))

    def exact(self, kept: Kept) -> Problem:
        """Return the problem over some states of every variable."""
        return compacted(simplified(restricted(self._problem, some(kept, self.sizes))))

    def value(self, states: Sequence[int]) -> int:
        """Return the cost of one state per variable."""
        return self._problem.value(states)


class Fetches:
    """A coarse graph whose shared fetches are tabulated over the states that are asked for."""

    def __init__(
        self, coarse: CoarseGraph, halves: tuple[CoarseGraph, int], domains: Sequence[Domain], objective: Objective
    ) -> None:
        self._domains, self._objective = tuple(domains), objective
        self.sizes = tuple(len(domain.states) for domain in domains)
        self.scopes = [tuple(sorted(set(factor.scope))) for factor in coarse.factors]
        pairwise, self.scale = halves
        tables = Tables()
        self.relaxed = build(pairwise, domains, tables, objective)
        pairs = [factor for factor in coarse.factors if not is_shared(factor.scope)]
        shared = [factor for factor in coarse.factors if is_shared(factor.scope)]
        self._shared = replace(coarse, factors=tuple(shared))
        self._alone = build(replace(coarse, factors=tuple(pairs)), domains, tables, objective)
        self._some: dict[tuple[int, tuple[int, ...]], Domain] = {}
        self._points = Tables()

    def exact(self, kept: Kept) -> Problem:
        """Return the problem over some states of every variable."""
        alone = compacted(restricted(self._alone, some(kept, self.sizes)))
        shared = build(self._shared, self._domains_of(kept), alone.tables, self._objective)
        terms = (*alone.terms, *shared.terms)
        both = Problem(alone.tables, shared.sizes, terms, alone.constant + shared.constant)
        return compacted(simplified(both))

    def value(self, states: Sequence[int]) -> int:
        """Return the cost of one state per variable."""
        domains = self._domains_of([(state,) for state in states])
        return self._alone.value(states) + build(self._shared, domains, self._points, self._objective).constant

    def _domains_of(self, kept: Kept) -> list[Domain]:
        return [self._taken(domain, states) for domain, states in zip(self._domains, kept, strict=True)]

    def _taken(self, domain: Domain, states: tuple[int, ...]) -> Domain:
        if len(states) == len(domain.states):
            return domain
        key = (id(domain), states)
        if key not in self._some:
            self._some[key] = domain.taken(states)
        return self._some[key]


def model_of(coarse: CoarseGraph, domains: Sequence[Domain], objective: Objective) -> Model:
    """Return the model of choosing one state of each variable's domain so that the objective is least."""
    halves = halved(coarse) if isinstance(objective, Bytes) else None
    if halves is None or not any(is_shared(factor.scope) for factor in coarse.factors):
        return Dense(build(coarse, domains, Tables(), objective))
    return Fetches(coarse, halves, domains, objective)


def some(kept: Kept, sizes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the variables that keep only some of their states, with these."""
    return {v: states for v, (states, size) in enumerate(zip(kept, sizes, strict=True)) if len(states) < size}
