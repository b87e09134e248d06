"""Dominated states (dead-end elimination, Goldstein 1994): drop a state if another is at least as good in any case.

State t of a variable goes if some t' has sum over terms of max over the other variables of (cost(t') - cost(t)) <= 0.
An optimum remains: replacing t by t' never costs more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table, Tables
from planner.search.solver.problem import (
    Problem,
    restricted_problem,
    simplified_problem,
    surroundings_of_variable,
    terms_by_variable,
)

EXACT_COMPARISONS = 1 << 24
CACHE_BYTES = 1 << 29


class Dominance:
    """Prunes problems over one store of tables; equal surroundings are compared once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._survivors: dict[object, tuple[int, ...]] = {}
        self._losses: dict[tuple[int, int], Table] = {}
        self._cached_bytes = 0

    def prune_dominated_states(self, problem: Problem) -> tuple[Problem, list[tuple[int, ...]]]:
        """Return the problem without dead ends, and the states kept per variable, to a fixpoint.

        Of states that are equally good whatever the neighbours do, the first is kept.
        """
        kept = [tuple(range(size)) for size in problem.sizes]
        waiting = set(range(len(problem.sizes)))
        while waiting:
            terms_of = terms_by_variable(problem.terms, len(problem.sizes))
            found = {
                v: states
                for v in sorted(waiting)
                if (states := self._surviving_states(problem, v, terms_of[v])) is not None
            }
            waiting = {u for v in found for term in terms_of[v] for u in problem.terms[term][0]}
            if found:
                problem = simplified_problem(restricted_problem(problem, found))
                for v, states in found.items():
                    kept[v] = tuple(kept[v][state] for state in states)
        return problem, kept

    def _surviving_states(self, problem: Problem, v: int, positions: Sequence[int]) -> tuple[int, ...] | None:
        """Return the states of a variable that are no dead ends, or None if all are alive."""
        size = problem.sizes[v]
        if size == 1:
            return None
        _, shape = surroundings_of_variable(v, [problem.terms[position] for position in positions])
        key = (size, tuple((number, scope.index(0)) for number, scope in shape))
        if key not in self._survivors:
            loss = np.zeros((size, size), dtype=np.int64)
            for number, scope in shape:
                loss += self._loss_of_term(number, scope)
            self._survivors[key] = tuple(np.flatnonzero(~dominated_state_flags(loss)).tolist())
        states = self._survivors[key]
        return None if len(states) == size else states

    def _loss_of_term(self, number: int, scope: Scope) -> Table:
        """Return [t, t']: the most that t' can cost over t in this term, whatever the other variables do."""
        axis = scope.index(0)
        if (number, axis) not in self._losses:
            if self._cached_bytes > CACHE_BYTES:
                self._losses.clear()
                self._cached_bytes = 0
            rows = np.moveaxis(self._tables[number], axis, 0)
            found = self._losses[number, axis] = _largest_losses_of_rows(rows)
            self._cached_bytes += found.nbytes
        return self._losses[number, axis]


def _largest_losses_of_rows(rows: Table) -> Table:
    numbers: dict[bytes, int] = {}
    of = [numbers.setdefault(row.tobytes(), len(numbers)) for row in rows]
    distinct = rows[[of.index(number) for number in range(len(numbers))]]
    if distinct.size * len(distinct) <= EXACT_COMPARISONS or rows.ndim <= 2:
        loss = largest_differences_of_rows(distinct.reshape(len(distinct), -1))
    else:
        loss = _upper_bounds_of_differences(distinct)
    return np.asarray(loss[np.ix_(of, of)])


def _upper_bounds_of_differences(rows: NDArray[np.int64]) -> Table:
    """Return an upper bound of [t, t']: along one other axis exactly, over the remaining ones by their extremes."""
    found: Table | None = None
    for axis in range(1, rows.ndim):
        others = tuple(other for other in range(1, rows.ndim) if other != axis)
        high, low = rows.max(axis=others), rows.min(axis=others)
        bound = np.stack([(high - row).max(axis=1) for row in low])
        found = bound if found is None else np.minimum(found, bound)
    if found is None:
        raise ValueError("a term of one variable is compared exactly")
    np.fill_diagonal(found, 0)
    return found


def largest_differences_of_rows(rows: Table) -> Table:
    """Return [t, t']: the maximum of rows[t'] - rows[t]."""
    found = np.empty((len(rows), len(rows)), dtype=np.int64)
    for state, row in enumerate(rows):
        found[state] = (rows - row).max(axis=1)
    return found


def dominated_state_flags(loss: Table) -> NDArray[np.bool_]:
    """Return which states t another t' can replace: t' costs at most loss [t, t'] more; of equals the first stays."""
    dead = (loss < 0) | (loss == 0) & (np.arange(len(loss))[None, :] < np.arange(len(loss))[:, None])
    return np.asarray(dead.any(axis=1))
