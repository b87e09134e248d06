"""Pairwise relaxations: lower bounds on terms of three and more variables, as terms of two."""

from __future__ import annotations

from collections import defaultdict

from planner.search.costs.tables import Scope, Tables, Term
from planner.search.solver.problem import Problem, simplified_problem


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
