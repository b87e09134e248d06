"""Brute force over the variables of a coarse graph: every layout, and per layout every strategy."""

from itertools import product
from math import prod

import numpy as np

from planner.search.coarse import TensorVariable


def least_bytes(space, most=300_000, candidates=None):
    """Return the least bytes of any plan of the space, or None where there are too many plans.

    `candidates` are the states that may be chosen, per variable; all where there are none.
    """
    variables = range(len(space.coarse.variables))
    problem = space.problem(candidates or [space.candidates(v) for v in variables])
    tensors = [v for v in variables if isinstance(space.coarse.variables[v], TensorVariable)]
    groups = _groups(problem, set(variables) - set(tensors))
    layouts = prod(problem.sizes[v] for v in tensors)
    strategies = [prod(problem.sizes[v] for v in group) for group in groups]
    if layouts * sum(strategies) > most:
        return None
    at = dict(zip(tensors, np.indices([problem.sizes[v] for v in tensors]).reshape(len(tensors), -1), strict=True))
    total = np.full(layouts, problem.constant)
    for group in groups:
        terms = [term for term in problem.terms if set(term[0]) & set(group)]
        best = None
        for states in product(*(range(problem.sizes[v]) for v in group)):
            chosen = at | dict(zip(group, states, strict=True))
            cost = _cost(problem, terms, chosen, layouts)
            best = cost if best is None else np.minimum(best, cost)
        total += best
    total += _cost(problem, [term for term in problem.terms if set(term[0]) <= set(tensors)], at, layouts)
    return int(total.min())


def _cost(problem, terms, chosen, count):
    total = np.zeros(count, dtype=np.int64)
    for scope, number in terms:
        total += problem.tables[number][tuple(chosen[v] for v in scope)]
    return total


def _groups(problem, nodes):
    """Nodes whose strategies meet in one term."""
    groups = [{v} for v in sorted(nodes)]
    for scope, _ in problem.terms:
        touched = [group for group in groups if group & set(scope)]
        if len(touched) > 1:
            groups = [group for group in groups if group not in touched] + [set().union(*touched)]
    return [sorted(group) for group in groups]
