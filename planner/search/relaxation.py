"""A pairwise relaxation: terms of three and more variables bounded from below by terms of two.

Fetches that a backward group shares couple two strategies and a layout, which makes tables large. Half of the most
that each of the two could save, charged to it alone, is a lower bound on what they cost together; the relaxed
problem is small, and its optimum is both a lower bound and a good choice.
"""

from __future__ import annotations

from collections import Counter

from planner.search.problem import Problem, simplified
from planner.search.tables import Term


def relax(problem: Problem) -> Problem:
    """Return a problem with terms of at most two variables in which no choice costs more."""
    used = Counter(v for scope, _ in problem.terms for v in scope)
    terms: list[Term] = []
    for scope, number in problem.terms:
        if len(scope) <= 2:
            terms.append((scope, number))
            continue
        common = max(range(len(scope)), key=lambda axis: (used[scope[axis]], -axis))
        others = [axis for axis in range(len(scope)) if axis != common]
        for axis in others:
            pair = tuple(sorted((axis, common)))
            terms.append(
                ((scope[pair[0]], scope[pair[1]]), problem.tables.lowest(number, pair, len(others)))
            )
    return simplified(Problem(problem.tables, problem.sizes, tuple(terms), problem.constant))
