"""Lower bounds whose messages depend on what another variable, a hub, does: one message per case of the hub's states.

Messages between single variables let every part of a problem mix states of its own, each a little, which no choice can
do. Where all around a hub know its case, what is mixed must agree in it. This is conditioning on a cut set (Pearl
1988), within messages: terms around a hub become clusters that meet in pairs (case of the hub, variable).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table
from planner.search.minsum.bounds import SCALE_BITS, breadth_first
from planner.search.minsum.problem import Problem, by_variable

Numbers = NDArray[Any]
Messages = Sequence[Sequence[Numbers]]


@dataclass(frozen=True, slots=True)
class Hubs:
    """Whose case a variable knows: `of` [variable], hubs themselves left out, and per hub the case [state]."""

    of: Mapping[int, int]
    case: Mapping[int, NDArray[np.int64]]


class Conditioned:
    """A reparametrisation of a pairwise problem: a message [case of its hub, state] from every term to each variable.

    A variable without a hub has one case. The problem's costs are times 2**SCALE_BITS; returned bounds are not.
    """

    def __init__(self, problem: Problem, hubs: Hubs, messages: Mapping[Scope, Sequence[Numbers]]) -> None:
        """Begin with messages [state], known by the scope of the term."""
        self._problem, self._hubs = problem, hubs
        self._states = {
            hub: [np.flatnonzero(case == one) for one in range(int(case.max()) + 1)] for hub, case in hubs.case.items()
        }
        self._unary = [np.zeros((self._cases(v), size), dtype=np.int64) for v, size in enumerate(problem.sizes)]
        for scope, number in problem.terms:
            if len(scope) == 1:
                self._unary[scope[0]] += problem.tables[number]
        self._terms = [(scope, number) for scope, number in problem.terms if len(scope) == 2]
        self._messages: list[list[Numbers]] = [
            [
                np.broadcast_to(known.astype(np.float32), self._unary[v].shape)
                for v, known in zip(scope, messages[scope], strict=True)
            ]
            for scope, _ in self._terms
        ]
        both = {number: _both_ways(problem.tables[number]) for number in {number for _, number in self._terms}}
        self._floats = [both[number] for _, number in self._terms]
        most_cases = max(map(len, self._unary), default=1)
        self._scratch = np.empty(most_cases * max((table.size for table, _ in self._floats), default=1), np.float32)
        self._plan = self._planned()

    def _cases(self, v: int) -> int:
        return len(self._states[self._hubs.of[v]]) if v in self._hubs.of else 1

    def _planned(self) -> list[tuple[int, list[tuple[int, int, bool]], int]]:
        """Return, per variable in order: its terms with its axis in each and if the other comes later, and shares."""
        scopes = [scope for scope, _ in self._terms]
        order = breadth_first(len(self._problem.sizes), scopes)
        place = {v: i for i, v in enumerate(order)}
        terms_of = by_variable(self._terms, len(order))
        plan = []
        for v in order:
            mine = [(f, scopes[f].index(v), place[sum(scopes[f]) - v] > place[v]) for f in terms_of[v]]
            later = sum(onward for *_, onward in mine)
            if mine:
                plan.append((v, mine, max(later, len(mine) - later)))
        return plan

    def sweep(self) -> None:
        """Pass over the variables forwards, then backwards."""
        for forwards in (True, False):
            for v, mine, shares in self._plan if forwards else reversed(self._plan):
                marginals = [self._collected(f, axis, self._floats[f][axis], self._messages) for f, axis, _ in mine]
                part: Numbers = self._unary[v].astype(np.float32)
                for marginal in marginals:
                    part = part + marginal
                part = part / shares
                for (f, axis, onward), marginal in zip(mine, marginals, strict=True):
                    sent = marginal - part if onward == forwards else marginal
                    self._messages[f][axis] = np.broadcast_to(sent, part.shape)

    def _collected(self, f: int, axis: int, table: Numbers, messages: Messages) -> Numbers:
        """Return [case, state]: the minimum per state of one variable of a term, less what it has sent to the other.

        `table` is [state of the other, state]. The result has one row if it is the same in all cases.
        """
        scope, _ = self._terms[f]
        v, other = scope[axis], scope[1 - axis]
        message, hub_of = messages[f][1 - axis], self._hubs.of
        if hub_of.get(v) == other:
            left = table - message.T
            return np.stack([left[states].min(axis=0) for states in self._states[other]])
        if hub_of.get(other) == v:
            return np.asarray((table - message[self._hubs.case[v]].T).min(axis=0)[None])
        if v not in hub_of or hub_of[v] != hub_of.get(other):
            message = message.max(axis=0)[None]
        shape = (len(message), *table.shape)
        out = self._scratch[: prod(shape)].reshape(shape) if table.dtype == self._scratch.dtype else None
        return np.asarray(np.subtract(table, message[:, :, None], out=out).min(axis=1))

    def value(self) -> int:
        """Return the lower bound."""
        return self._proved()[0]

    def of_states(self) -> list[Table]:
        """Return, per variable and state, a lower bound on the cost of every choice with that state."""
        return self._proved()[1]

    def _proved(self) -> tuple[int, list[Table]]:
        """Return the lower bound and those of states: what rounded messages prove, in integers."""
        messages = [[np.rint(message).astype(np.int64) for message in sent] for sent in self._messages]
        unary = [costs.copy() for costs in self._unary]
        for (scope, _), sent in zip(self._terms, messages, strict=True):
            for v, message in zip(scope, sent, strict=True):
                unary[v] += message
        total = sum(int(costs.min()) for costs in unary)
        beyond = [costs - costs.min() for costs in unary]
        for f, (scope, number) in enumerate(self._terms):
            for axis, v in enumerate(scope):
                table = np.moveaxis(self._problem.tables[number], axis, 1)
                left = self._collected(f, axis, table, messages) - messages[f][axis]
                least = int(left.min())
                beyond[v] += left - least
            total += least
        total += self._problem.constant
        return _rounded_up(total), [_rounded_up(costs.min(axis=0) + total) for costs in beyond]


def _both_ways(table: Table) -> tuple[Numbers, Numbers]:
    """Return a table of two variables with either of them last."""
    return np.ascontiguousarray(table.T, dtype=np.float32), np.ascontiguousarray(table, dtype=np.float32)


def _rounded_up(costs: Any) -> Any:
    """Return costs divided by 2**SCALE_BITS, rounded up."""
    return -(-costs >> SCALE_BITS)
