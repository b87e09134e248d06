"""What the solver works on: an exact view of a problem over few states, and a pairwise one never above it over all.

Tables of three and more variables are large, and most of their states are never needed. So the pairwise view bounds
and prunes, and the exact one is built for the states that are left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property, partial
from itertools import combinations
from math import prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from planner.search.coarse.coarsen import CoarseGraph
from planner.search.costs.domains import Domain, Layouts, Strategies
from planner.search.costs.tables import Scope, Shape, Table, Tables, Term, table_with_axes_spread
from planner.search.objectives.objective import Bytes, Objective
from planner.search.solver.isomorphism import colours_of_variables
from planner.search.solver.problem import (
    Problem,
    problem_in_own_store,
    problem_of_graph,
    restricted_problem,
    simplified_problem,
)
from planner.search.solver.quotient import LazyTerm, constant_term, lazy_terms_of_problem
from planner.search.solver.relaxation import (
    BackwardGroup,
    RelaxedFetches,
    SharedFetch,
    is_shared_fetch,
    pairwise_relaxation,
    relaxed_fetches,
)

GROUP_ENTRIES = 1 << 22
"""Up to so many entries a fetch that three and more nodes share is bounded as a whole."""

ALIKE_ROUNDS = 2
"""How far around two variables must look alike to be of one colour."""

OpenStates = Sequence[tuple[int, ...]]
"""The open states of every variable: those that are still to be chosen from."""


class Outline(Struct, frozen=True):
    """What a problem would be, no table made: equal numbers stand for equal tables, of so many `entries` together."""

    sizes: tuple[int, ...]
    terms: tuple[Term, ...]
    entries: int

    @classmethod
    def of_keyed_terms(cls, sizes: Sequence[int], keyed: Iterable[tuple[Scope, Hashable]]) -> Outline:
        """Return the outline of terms of given scopes and keys, which are equal for equal tables."""
        numbers: dict[Hashable, int] = {}
        scopes: dict[int, Scope] = {}
        terms = []
        for scope, key in keyed:
            number = numbers.setdefault((key, tuple(sizes[v] for v in scope)), len(numbers))
            scopes.setdefault(number, scope)
            terms.append((scope, number))
        return cls(tuple(sizes), tuple(terms), sum(prod(sizes[v] for v in scope) for scope in scopes.values()))


class DenseModel:
    """A model whose tables are all there."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.sizes, self.scale = problem.sizes, 1
        self.scopes = [scope for scope, _ in problem.terms]

    @cached_property
    def colours_of_variables(self) -> list[int]:
        """A colour per variable: those of one colour look alike."""
        return colours_of_variables(self.sizes, self._problem.terms, ALIKE_ROUNDS)

    @cached_property
    def relaxed_problem(self) -> Problem:
        """The pairwise view, over all states."""
        pairwise = all(len(scope) <= 2 for scope in self.scopes)
        return self._problem if pairwise else problem_in_own_store(pairwise_relaxation(self._problem))

    def outline_of_problem(self, open_states: OpenStates) -> Outline:
        """Return what the problem over some states would be."""
        if not restricted_states(open_states, self.sizes):
            tables, terms = self._problem.tables, self._problem.terms
            return Outline(self.sizes, terms, sum(tables[number].size for number in {number for _, number in terms}))
        keys = ((number, *(open_states[v] for v in scope)) for scope, number in self._problem.terms)
        return Outline.of_keyed_terms([len(states) for states in open_states], zip(self.scopes, keys, strict=True))

    def exact_problem(self, open_states: OpenStates) -> Problem:
        """Return the problem over some states of every variable."""
        some_of = restricted_states(open_states, self.sizes)
        return (
            problem_in_own_store(simplified_problem(restricted_problem(self._problem, some_of)))
            if some_of
            else self._problem
        )

    def restricted_model(self, open_states: OpenStates) -> DenseModel:
        """Return the model of choosing among some states of every variable."""
        return DenseModel(self.exact_problem(open_states))

    def lazy_terms(self, most_entries: float) -> list[LazyTerm]:
        """Return the terms, those of few variables within larger ones, if the distinct ones have no more entries."""
        return _lazy_terms_if_few_entries(lazy_terms_of_problem(self._problem), self.sizes, most_entries)

    def value(self, states: Sequence[int]) -> int:
        """Return the cost of one state per variable."""
        return self._problem.value(states)


class SharedFetchModel:
    """A coarse graph whose shared fetches are tabulated over the states that are asked for."""

    def __init__(
        self, coarse: CoarseGraph, relaxed: RelaxedFetches, domains: Sequence[Domain], objective: Objective
    ) -> None:
        self._coarse, self._relaxed_fetches = coarse, relaxed
        self._domains, self._objective = tuple(domains), objective
        self.sizes = tuple(len(domain.states) for domain in domains)
        self.scopes = [tuple(sorted(set(factor.scope))) for factor in coarse.factors]
        tables, self.scale, self._groups = Tables(), relaxed.scale, relaxed.groups
        self.relaxed_problem = problem_of_graph(relaxed.coarse, domains, tables, objective)
        pairs = [factor for factor in coarse.factors if not is_shared_fetch(factor.scope)]
        shared = [factor for factor in coarse.factors if is_shared_fetch(factor.scope)]
        self._shared = replace(coarse, factors=tuple(shared))
        self._alone = problem_of_graph(replace(coarse, factors=tuple(pairs)), domains, tables, objective)
        self._some: dict[tuple[int, tuple[int, ...]], Domain] = {}
        self._points = Tables()

    @cached_property
    def colours_of_variables(self) -> list[int]:
        """A colour per variable: those of one colour look alike."""
        return colours_of_variables(self.sizes, self.relaxed_problem.terms, ALIKE_ROUNDS)

    def outline_of_problem(self, open_states: OpenStates) -> Outline:
        """Return what the problem over some states would be."""
        domains = self._domains_of_open_states(open_states)
        keys = (
            (factor.cost, factor.weight, *((id(domains[v]), scope.index(v)) for v in factor.scope))
            for factor, scope in zip(self._coarse.factors, self.scopes, strict=True)
        )
        return Outline.of_keyed_terms([len(states) for states in open_states], zip(self.scopes, keys, strict=True))

    def exact_problem(self, open_states: OpenStates) -> Problem:
        """Return the problem over some states of every variable."""
        alone = problem_in_own_store(restricted_problem(self._alone, restricted_states(open_states, self.sizes)))
        shared = problem_of_graph(
            self._shared, self._domains_of_open_states(open_states), alone.tables, self._objective
        )
        terms = (*alone.terms, *shared.terms)
        both = Problem(alone.tables, shared.sizes, terms, alone.constant + shared.constant)
        return problem_in_own_store(simplified_problem(both))

    def restricted_model(self, open_states: OpenStates) -> SharedFetchModel:
        """Return the model of choosing among some states of every variable."""
        return SharedFetchModel(
            self._coarse, self._relaxed_fetches, self._domains_of_open_states(open_states), self._objective
        )

    def lazy_terms(self, most_entries: float) -> list[LazyTerm]:
        """Return the relaxed view's terms and what shared fetches cost beyond, if the distinct have no more entries."""
        spanning: dict[int, list[int]] = defaultdict(list)
        fetches = [fetch for group in self._groups for fetch in self._shared_fetches_of(group)]
        for at, fetch in enumerate(fetches):
            spanning[fetch.scope[-1]].append(at)
        within: list[list[Term]] = [[] for _ in fetches]
        terms = [constant_term(self.relaxed_problem.constant)]
        for scope, number in self.relaxed_problem.terms:
            home = next((at for v in scope for at in spanning[v] if set(scope) <= set(fetches[at].scope)), None)
            if home is None:
                terms.append(LazyTerm(scope, number, partial(self.relaxed_problem.tables.__getitem__, number)))
            else:
                within[home].append((scope, number))
        for fetch, inner in zip(fetches, within, strict=True):
            scope = tuple(dict.fromkeys(fetch.scope))
            placed = tuple(sorted((number, tuple(map(scope.index, part))) for part, number in inner))
            domains = tuple(id(self._domains[v]) for v in fetch.scope)
            key = tuple(fetch.costs.items()), fetch.times, domains, tuple(map(scope.index, fetch.scope)), placed
            terms.append(LazyTerm(scope, key, partial(self._table_of_fetch_and_terms_within, fetch, placed)))
        return _lazy_terms_if_few_entries(terms, self.sizes, most_entries)

    def _table_of_fetch_and_terms_within(self, fetch: SharedFetch, within: Shape) -> Table:
        """Return what a shared fetch costs beyond the relaxed view and the terms of this within its scope.

        Its axes are the variables of the scope, each where it first occurs.
        """
        variables = list(dict.fromkeys(fetch.scope))
        total = self._cost_of_fetch_beyond_relaxed(fetch)
        if len(variables) < len(fetch.scope):
            total = np.einsum(total, list(map(variables.index, fetch.scope)), range(len(variables)))
        for number, positions in within:
            total += table_with_axes_spread(self.relaxed_problem.tables[number], positions, len(variables))
        return total

    def _shared_fetches_of(self, group: BackwardGroup) -> list[SharedFetch]:
        """Return what a group shares: all of its nodes or, where that table would be large, every two of them."""
        whole = group.fetch_shared_by(range(group.node_count))
        if group.node_count == 2 or prod(self.sizes[v] for v in whole.scope) <= GROUP_ENTRIES:
            return [whole]
        return [group.fetch_shared_by(pair) for pair in combinations(range(group.node_count), 2)]

    def _cost_of_fetch_beyond_relaxed(self, fetch: SharedFetch) -> Table:
        """Return what a shared fetch costs beyond the relaxed view, [state of each node..., layout]."""
        *nodes, layouts = (self._domains[v] for v in fetch.scope)
        strategies = [domain for domain in nodes if isinstance(domain, Strategies)]
        if len(strategies) < len(nodes) or not isinstance(layouts, Layouts):
            raise TypeError(f"expected a fetch by nodes of a tensor, got {nodes} of {layouts}")
        total: Table = np.zeros((), dtype=np.int64)
        for chosen in sorted(fetch.costs, key=len, reverse=True):
            table = fetch.costs[chosen].table([strategies[node] for node in chosen], layouts)
            times = fetch.times * (len(nodes) - 1 if len(chosen) == 1 else len(nodes))
            kept = (*(slice(None) if node in chosen else None for node in range(len(nodes))), slice(None))
            total = _sum_in_place(total, (table * np.int64(times))[kept])
        return total

    def value(self, states: Sequence[int]) -> int:
        """Return the cost of one state per variable."""
        domains = self._domains_of_open_states([(state,) for state in states])
        return (
            self._alone.value(states) + problem_of_graph(self._shared, domains, self._points, self._objective).constant
        )

    def _domains_of_open_states(self, open_states: OpenStates) -> list[Domain]:
        return [
            self._restricted_domain(domain, states) for domain, states in zip(self._domains, open_states, strict=True)
        ]

    def _restricted_domain(self, domain: Domain, states: tuple[int, ...]) -> Domain:
        if len(states) == len(domain.states):
            return domain
        key = (id(domain), states)
        if key not in self._some:
            self._some[key] = domain.restricted_to(states)
        return self._some[key]


Model = DenseModel | SharedFetchModel
"""A problem in two views; the relaxed one costs at most `scale` times what the exact one does, at any choice.

`lazy_terms` lie between the two; they are nothing where the distinct ones have more entries than asked for.
"""


def model_of_graph(coarse: CoarseGraph, domains: Sequence[Domain], objective: Objective) -> Model:
    """Return the model of choosing one state of each variable's domain so that the objective is least."""
    relaxed = relaxed_fetches(coarse, prod(domains[0].ways)) if isinstance(objective, Bytes) else None
    if relaxed is None or not any(is_shared_fetch(factor.scope) for factor in coarse.factors):
        return DenseModel(problem_of_graph(coarse, domains, Tables(), objective))
    return SharedFetchModel(coarse, relaxed, domains, objective)


def _sum_in_place(total: Table, more: Table) -> Table:
    """Return the sum of two tables, in the memory of the first if it is as large."""
    return np.add(total, more, out=total) if total.ndim else more


def _lazy_terms_if_few_entries(terms: list[LazyTerm], sizes: Sequence[int], most_entries: float) -> list[LazyTerm]:
    """Return the terms if those of different keys have no more entries together, else nothing."""
    entries = {term.key: prod(sizes[v] for v in term.scope) for term in terms}
    return terms if sum(entries.values()) <= most_entries else []


def restricted_states(open_states: OpenStates, sizes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the variables that keep only some of their states, with these."""
    return {v: states for v, (states, size) in enumerate(zip(open_states, sizes, strict=True)) if len(states) < size}
