"""The min-sum problem: one domain per variable of the coarse graph, and tables whose sum is the cost of a choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from planner.layout.split import REMEMBERED
from planner.search.coarse.coarsen import CoarseGraph
from planner.search.costs.domains import Domain
from planner.search.costs.tables import Scope, Tables, Term
from planner.search.objectives.objective import BYTES, Objective


class Problem(Struct, frozen=True, eq=False):
    """Minimize `constant` + the sum of the terms over states of variables 0..n-1, `sizes[v]` states each."""

    tables: Tables
    sizes: tuple[int, ...]
    terms: tuple[Term, ...]
    constant: int = 0

    def value(self, states: Sequence[int]) -> int:
        """Return the cost of one state per variable."""
        return self.constant + sum(
            self.tables.entry(number, tuple([states[v] for v in scope])) for scope, number in self.terms
        )


def simplified_problem(problem: Problem) -> Problem:
    """Return the same problem with terms of one scope added up, idle axes dropped and separable tables split."""
    merged: dict[Scope, dict[int, int]] = {}
    constant = problem.constant
    for scope, number in problem.terms:
        for axes, part in problem.tables.separable_parts(number):
            if axes:
                weights = merged.setdefault(tuple([scope[axis] for axis in axes]), {})
                weights[part] = weights.get(part, 0) + 1
            else:
                constant += int(problem.tables[part])
    terms = [(scope, _weighted_sum(problem.tables, parts)) for scope, parts in sorted(merged.items())]
    return Problem(problem.tables, problem.sizes, tuple(terms), constant)


def _weighted_sum(tables: Tables, weights: Mapping[int, int]) -> int:
    """Return the number of the weighted sum of tables."""
    terms = tuple(weights.items()) if len(weights) == 1 else tuple(sorted(weights.items()))
    return terms[0][0] if len(terms) == 1 and terms[0][1] == 1 else tables.weighted_sum(terms)


def problem_of_graph(
    coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables, objective: Objective = BYTES
) -> Problem:
    """Return the problem of choosing a state of each variable's domain that minimizes the objective."""
    merged: dict[Scope, dict[int, int]] = {}
    for priced in objective.priced_tables(coarse, domains, tables):
        scope, positions = _ascending_scope(priced.scope)
        number = priced.table if positions is None else tables.with_axes_arranged(priced.table, positions)
        weights = merged.setdefault(scope, {})
        weights[number] = weights.get(number, 0) + priced.times
    terms = tuple((scope, _weighted_sum(tables, parts)) for scope, parts in merged.items())
    return simplified_problem(Problem(tables, tuple(len(domain.states) for domain in domains), terms))


@lru_cache(maxsize=REMEMBERED)
def _ascending_scope(scope: Scope) -> tuple[Scope, Scope | None]:
    """Return the distinct variables of a scope, ascending, and each axis's position among them; None if unchanged."""
    ascending = tuple(sorted(set(scope)))
    return ascending, None if ascending == scope else tuple(map(ascending.index, scope))


def restricted_problem(problem: Problem, kept: Mapping[int, tuple[int, ...]]) -> Problem:
    """Return the problem in which some variables keep only some of their states."""
    sizes = tuple(len(kept[v]) if v in kept else size for v, size in enumerate(problem.sizes))
    terms = tuple(
        (scope, problem.tables.restricted_to_states(number, tuple(kept.get(v) for v in scope)))
        for scope, number in problem.terms
    )
    return Problem(problem.tables, sizes, terms, problem.constant)


def problem_in_own_store(problem: Problem) -> Problem:
    """Return the same problem over its own tables, so that the memory of intermediate tables can be freed."""
    tables = Tables()
    terms = tuple((scope, tables.intern(problem.tables[number])) for scope, number in problem.terms)
    return Problem(tables, problem.sizes, terms, problem.constant)


def terms_by_variable(terms: Iterable[Term], variables: int) -> list[list[int]]:
    """Return, per variable, the positions in `terms` of those that mention it."""
    positions: list[list[int]] = [[] for _ in range(variables)]
    for position, (scope, _) in enumerate(terms):
        for v in scope:
            positions[v].append(position)
    return positions


def neighbours_by_variable(count: int, scopes: Iterable[Scope]) -> list[set[int]]:
    """Return, per variable, the others that share a term with it."""
    adjacent: list[set[int]] = [set() for _ in range(count)]
    for scope in scopes:
        for v in scope:
            adjacent[v].update(scope)
    for v, others in enumerate(adjacent):
        others.discard(v)
    return adjacent


def surroundings_of_variable(v: int, terms: Sequence[Term]) -> tuple[Scope, tuple[tuple[int, Scope], ...]]:
    """Return a variable's neighbours in the terms, and the terms as positions: 0 the variable, i the i-th neighbour.

    Neighbours and terms are in a canonical order, so that equivalent surroundings are equal.
    """
    neighbours = tuple(sorted({u for scope, _ in terms for u in scope if u != v}))
    position = {v: 0, **{u: i + 1 for i, u in enumerate(neighbours)}}
    return neighbours, tuple(sorted((number, tuple(position[u] for u in scope)) for scope, number in terms))
