"""The min-sum problem: one domain per variable of the coarse graph, and tables whose sum is the cost of a choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct, field

from planner.layout.region import REMEMBERED
from planner.search.coarse import CoarseGraph
from planner.search.costs.domains import Domain
from planner.search.costs.tables import Scope, Tables, Term
from planner.search.objectives import BYTES, Objective


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


# Limits and tuning parameters of the search.


NO_BOUND = -(1 << 62)
"""The lower bound if nothing is known."""


class Tuning(Struct, frozen=True):
    """Tuning parameters of the search: they affect how soon bounds and plans come, never whether they are right."""

    quick_operations: float = 1e9
    """Additions, about a second, below which the greedy order suffices and no cheaper order is sought."""

    few_entries: float = 3e6
    """Entries of all distinct tables, a tenth of a second, that are computed without checking the cost first."""

    table_entries: float = 3e8
    """Largest number of entries of all distinct tables computed at once: 2.4 GB."""

    table_entries_per_s: float = 3e7
    """Entries computed per second; tables that would take longer than the remaining time are not begun."""

    operations_per_s: float = 3e8
    """Additions per second; work that would take longer than the remaining time is not begun."""

    orders: int = 32
    """Largest number of elimination orders tried; the best takes up to ten times less work than the first."""

    ordering_part: float = 0.2
    """Fraction of the best order's work that the search for other orders may take."""

    ordering_operations: float = 5e4
    """Cost of finding one order, in additions per variable."""

    hoped_gain: float = 8.0
    """Largest factor by which another order may be expected to reduce the first order's work."""

    few_states: int = 2000
    """Number of states of all variables up to which solving whole is faster than solving over groups."""

    quotient_part: float = 0.5
    """Largest fraction of the states that the quotient may have to be worth its time."""

    near_choices: int = 1 << 22
    """Largest number of choices of a variable and its neighbours, no worse than the best plan, visited for marginals.

    """

    close: float = 2e-3
    """Optimality gap up to which the representatives of the best groups are not searched for a better plan."""

    untied_variables: int = 2000
    """Number of variables, before merging identical layers, up to which element-wise ties are left out.

    The recursion then takes about a second.
    """

    factored_workers: int = 16
    """Workers up to which every factorization is tried; beyond, only the prime factors and a single step are tried."""

    rival_steps: int = 4
    """Steps up to which rivals are tried: alternatives enumerate whole plans of every variable."""

    bound_seconds: float = 4.0
    """Seconds that a search for a bound alone may take after its setup."""

    bound_steps: Mapping[str, int] = field(default_factory=lambda: {"bytes": 3, "time": 2})
    """Steps up to which such a bound is sought, by objective; beyond, the setup alone takes long."""

    sweeps: int = 30
    """Passes of messages over all variables, in each direction."""

    converged: float = 2e-5
    """Messages end when five sweeps raise the bound by less than this fraction."""


class Limits(Struct, frozen=True):
    """Limits of a search: bytes of an elimination's tables, its additions, and CPU seconds of bounded stages.

    Computing a table takes three times its memory.
    """

    memory_bytes: int = 3 << 30
    operations: float = 5e10
    seconds: float = 95.0
    tuning: Tuning = Tuning()
