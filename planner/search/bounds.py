"""Lower bounds by sequential tree-reweighted message passing, on terms of any number of variables.

A message moves cost from a term to one of its variables, so that the sum stays the same; the sum of all minima is
then a lower bound on the cost of every choice, and it never falls. Costs are rounded down to integers on the way,
so the bound is exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.search.problem import Problem, by_variable
from planner.search.tables import Table

SCALE_BITS = 6


class Bound:
    """A reparametrisation of a problem: a message from every term to each of its variables.

    Internally costs are multiplied by 2**SCALE_BITS, so that dividing them among terms loses little.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._terms_of = by_variable(problem.terms, len(problem.sizes))
        self._messages: list[list[Table]] = [
            [np.zeros(problem.sizes[v], dtype=np.int64) for v in scope] for scope, _ in problem.terms
        ]
        self._scaled: dict[int, Table] = {}

    def sweep(self) -> None:
        """Pass over the variables forwards, then backwards."""
        count = len(self.problem.sizes)
        for v in range(count):
            self._update(v, forwards=True)
        for v in reversed(range(count)):
            self._update(v, forwards=False)

    def value(self) -> int:
        """Return the lower bound."""
        scaled = sum(int(minimum) for minimum in self._term_minima())
        scaled += sum(int(self._unary(v).min()) for v in range(len(self.problem.sizes)))
        return self.problem.constant - (-scaled >> SCALE_BITS)

    def of_states(self) -> list[Table]:
        """Return, per variable and state, a lower bound on the cost of every choice with that state."""
        minima = self._term_minima()
        unary = [self._unary(v) for v in range(len(self.problem.sizes))]
        total = sum(int(minimum) for minimum in minima) + sum(int(costs.min()) for costs in unary)
        found = []
        for v, costs in enumerate(unary):
            inside = costs + sum((self._marginal(f, v) for f in self._terms_of[v]), np.zeros_like(costs))
            rest = total - int(costs.min()) - sum(int(minima[f]) for f in self._terms_of[v])
            found.append(self.problem.constant - (-(inside + rest) >> SCALE_BITS))
        return found

    def round(self) -> list[int]:
        """Return a choice: variables in order, each the best given those before it."""
        chosen: dict[int, int] = {}
        for v in range(len(self.problem.sizes)):
            costs = self._unary(v)
            for f in self._terms_of[v]:
                costs = costs + self._marginal(f, v, chosen)
            chosen[v] = int(costs.argmin())
        return [chosen[v] for v in range(len(self.problem.sizes))]

    def _unary(self, v: int) -> Table:
        total = np.zeros(self.problem.sizes[v], dtype=np.int64)
        for f in self._terms_of[v]:
            total += self._messages[f][self.problem.terms[f][0].index(v)]
        return total

    def _table(self, f: int) -> Table:
        number = self.problem.terms[f][1]
        if number not in self._scaled:
            self._scaled[number] = self.problem.tables[number] << SCALE_BITS
        return self._scaled[number]

    def _reparametrised(self, f: int, fixed: dict[int, int], without: int | None = None) -> Table:
        """Return the term less its messages, one entry along variables whose state is fixed."""
        scope = self.problem.terms[f][0]
        at = tuple(slice(fixed[u], fixed[u] + 1) if u in fixed else slice(None) for u in scope)
        table = self._table(f)[at]
        for axis, (u, message) in enumerate(zip(scope, self._messages[f], strict=True)):
            if u != without:
                table = table - message[at[axis]].reshape([-1 if a == axis else 1 for a in range(len(scope))])
        return table

    def _term_minima(self) -> list[int]:
        return [int(self._reparametrised(f, {}).min()) for f in range(len(self.problem.terms))]

    def _marginal(self, f: int, v: int, fixed: dict[int, int] | None = None, *, whole: bool = False) -> Table:
        """Return the term's minimum per state of v; `whole` without what it has already sent to v."""
        axis = self.problem.terms[f][0].index(v)
        table = self._reparametrised(f, fixed or {}, without=v if whole else None)
        others = tuple(a for a in range(table.ndim) if a != axis)
        return np.asarray(table.min(axis=others) if others else table)

    def _update(self, v: int, *, forwards: bool) -> None:
        """Collect all cost at v, and give it back in equal parts to the terms that go on in this direction."""
        mine = self._terms_of[v]
        if not mine:
            return
        scopes = [self.problem.terms[f][0] for f in mine]
        later = sum(scope[-1] > v for scope in scopes)
        earlier = sum(scope[0] < v for scope in scopes)
        shares = max(later, earlier, 1)
        marginals = [self._marginal(f, v, whole=True) for f in mine]
        part = _add_up(marginals) // shares
        for f, scope, marginal in zip(mine, scopes, marginals, strict=True):
            onward = scope[-1] > v if forwards else scope[0] < v
            self._messages[f][scope.index(v)] = marginal - part if onward else marginal


def _add_up(arrays: Sequence[Table]) -> Table:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total
