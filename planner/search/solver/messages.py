"""Lower bounds by sequential tree-reweighted message passing (Kolmogorov 2006), on terms of any number of variables.

A message moves cost from a term to one of its variables, so that the sum stays the same; the sum of all minima is
then a lower bound on the cost of every choice. Messages are found in floating point, which is fast, and rounded to
integers before a bound is read off, so that the bound holds exactly.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table, Tables
from planner.search.solver.problem import Problem, by_variable, neighbours, simplified

Floats = NDArray[np.floating[Any]]

SCALE_BITS = 6
"""Costs are multiplied by 2**SCALE_BITS, so that rounding messages loses little."""

SINGLE_ENTRIES = 1 << 21
"""Entries of all terms' tables from which messages are found in single precision."""


class Messages:
    """A reparametrisation of a problem: a message from every term to each of its variables."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        count = len(problem.sizes)
        self._unary = [np.zeros(size, dtype=np.int64) for size in problem.sizes]
        self._terms = []
        for scope, number in problem.terms:
            if len(scope) == 1:
                self._unary[scope[0]] = self._unary[scope[0]] + (problem.tables[number] << SCALE_BITS)
            else:
                self._terms.append((scope, number))
        self._more: dict[int, Table] = {}
        entries = sum(problem.tables[number].size for _, number in self._terms)
        self._dtype: Any = np.float32 if entries > SINGLE_ENTRIES else np.float64
        self._terms_of = by_variable(self._terms, count)
        self._order = breadth_first(count, [scope for scope, _ in self._terms])
        self._messages: list[list[Floats]] = [
            [np.zeros(problem.sizes[v], dtype=self._dtype) for v in scope] for scope, _ in self._terms
        ]
        self._plan = self._planned()
        shared = {
            number: np.ascontiguousarray(problem.tables[number], dtype=self._dtype) * 2**SCALE_BITS
            for _, number in self._terms
        }
        self._floats = [shared[number] for _, number in self._terms]
        largest = max((table.size for table in self._floats), default=1)
        self._scratch = np.empty(largest, dtype=self._dtype)

    def _planned(self) -> list[tuple[int, list[tuple[int, int, bool, bool]], int]]:
        """Return, per variable in order: its terms with its axis in each, if they go on and if they began before."""
        place = {v: i for i, v in enumerate(self._order)}
        first = [min(place[v] for v in scope) for scope, _ in self._terms]
        last = [max(place[v] for v in scope) for scope, _ in self._terms]
        plan = []
        for v in self._order:
            mine = [(f, self._terms[f][0].index(v), last[f] > place[v], first[f] < place[v]) for f in self._terms_of[v]]
            shares = max(sum(onward for _, _, onward, _ in mine), sum(before for *_, before in mine), 1)
            if mine:
                plan.append((v, mine, shares))
        return plan

    def sweep(self) -> None:
        """Pass over the variables forwards, then backwards."""
        unary = [costs.astype(self._dtype) for costs in self._unary]
        for forwards in (True, False):
            for v, mine, shares in self._plan if forwards else reversed(self._plan):
                marginals = [self._collected(f, axis) for f, axis, _, _ in mine]
                part = unary[v]
                for marginal in marginals:
                    part = part + marginal
                part = part / shares
                for (f, axis, onward, before), marginal in zip(mine, marginals, strict=True):
                    self._messages[f][axis] = marginal - part if (onward if forwards else before) else marginal

    def _collected(self, f: int, axis: int) -> Floats:
        """Return the term's minimum per state of one of its variables, less what it has sent to the others."""
        scope, _ = self._terms[f]
        table, messages = self._floats[f], self._messages[f]
        if len(scope) == 2:
            scratch = self._scratch[: table.size].reshape(table.shape)
            other = messages[1] if axis == 0 else messages[0][:, None]
            np.subtract(table, other, out=scratch)
            return np.asarray(np.minimum.reduce(scratch, axis=1 - axis))
        for a in [*range(axis), *range(table.ndim - 1, axis, -1)]:
            out = self._scratch[: table.size].reshape(table.shape) if table is self._floats[f] else None
            table = np.minimum.reduce(
                np.subtract(table, messages[a].reshape(_along(a, table.ndim)), out=out), axis=a, keepdims=True
            )
        return np.asarray(table.reshape(-1))

    def left(self, f: int) -> Floats:
        """Return a term less all that it has sent, times 2**SCALE_BITS."""
        return np.asarray(_less(self._floats[f], self._messages[f]))

    def add(self, terms: Sequence[int], more: Table) -> None:
        """Add a table, times 2**SCALE_BITS, to several terms of the same scope's sizes; as often as a term is named."""
        often = Counter(terms)
        for times in set(often.values()):
            self._add([f for f, named in often.items() if named == times], times * more)

    def _add(self, terms: Sequence[int], more: Table) -> None:
        floats = _added([self._floats[f] for f in terms], more.astype(self._dtype))
        tables = _added([self._more.get(f) for f in terms], more)
        for f, summed, table in zip(terms, floats, tables, strict=True):
            self._floats[f], self._more[f] = summed, table

    def strengthened(self) -> Problem:
        """Return the problem with what was added, costs times 2**SCALE_BITS."""
        tables, problem = Tables(), self.problem
        number = {id(more): tables.intern(more) for more in self._more.values()}
        terms = [(scope, tables.intern(problem.tables[of] << SCALE_BITS)) for scope, of in problem.terms]
        terms += [(self._terms[f][0], number[id(more)]) for f, more in self._more.items()]
        return simplified(Problem(tables, problem.sizes, tuple(terms), problem.constant << SCALE_BITS))

    def exact_table(self, f: int) -> Table:
        """Return a term's table, times 2**SCALE_BITS."""
        table = self.problem.tables[self._terms[f][1]] << SCALE_BITS
        return table + self._more[f] if f in self._more else table

    def value(self) -> int:
        """Return the lower bound."""
        return _Exact(self).bound

    def of_states(self) -> list[Table]:
        """Return, per variable and state, a lower bound on the cost of every choice with that state."""
        return _Exact(self).of_states()

    def round(self) -> list[int]:
        """Return a choice: variables in order, each the best given those before it."""
        chosen: dict[int, int] = {}
        for v in self._order:
            costs = self._unary[v].astype(self._dtype)
            for f in self._terms_of[v]:
                costs = costs + self._given(f, v, chosen)
            chosen[v] = int(costs.argmin())
        return [chosen[v] for v in range(len(self.problem.sizes))]

    def _given(self, f: int, v: int, chosen: dict[int, int]) -> Floats:
        """Return the term's minimum per state of v, other variables as chosen or paying their messages."""
        scope, _ = self._terms[f]
        table: Floats = self._floats[f][tuple(chosen.get(u, slice(None)) for u in scope)]
        free = [u for u in scope if u not in chosen]
        for u in [u for u in free if u != v]:
            table = np.moveaxis(table, free.index(u), -1) - self._messages[f][scope.index(u)]
            table = table.min(axis=-1)
            free.remove(u)
        return table

    def messages(self) -> dict[Scope, list[Floats]]:
        """Return what every term has sent to each of its variables."""
        return {scope: messages for (scope, _), messages in zip(self._terms, self._messages, strict=True)}

    def resume(self, messages: Mapping[Scope, list[Floats]]) -> None:
        """Go on from messages found before."""
        for f, (scope, _) in enumerate(self._terms):
            if scope in messages:
                self._messages[f] = [message.astype(self._dtype) for message in messages[scope]]

    def exact_messages(self) -> list[list[Table]]:
        """Return the messages, rounded."""
        return [[np.rint(message).astype(np.int64) for message in messages] for messages in self._messages]

    def parts(self) -> tuple[list[Table], list[tuple[Scope, int]]]:
        """Return the costs of single states, and the terms of several variables."""
        return self._unary, self._terms


class _Exact:
    """What rounded messages prove: integers throughout."""

    def __init__(self, passed: Messages) -> None:
        self._problem, self._passed, self._messages = passed.problem, passed, passed.exact_messages()
        unary, self._terms = passed.parts()
        self._unary = [costs.copy() for costs in unary]
        for (scope, _), messages in zip(self._terms, self._messages, strict=True):
            for v, message in zip(scope, messages, strict=True):
                self._unary[v] += message

    @property
    def bound(self) -> int:
        """The lower bound on every choice."""
        total = self._single + sum(int(self._left(f).min()) for f in range(len(self._terms)))
        return self._problem.constant - (-total >> SCALE_BITS)

    def of_states(self) -> list[Table]:
        """Return, per variable and state, the lower bound on every choice with that state."""
        found = [costs - costs.min() for costs in self._unary]
        total = self._single
        for f, (scope, _) in enumerate(self._terms):
            left = self._left(f)
            least = int(left.min())
            total += least
            for axis, v in enumerate(scope):
                found[v] += left.min(axis=tuple(a for a in range(left.ndim) if a != axis)) - least
        return [self._problem.constant - (-(costs + total) >> SCALE_BITS) for costs in found]

    @property
    def _single(self) -> int:
        return sum(int(costs.min()) for costs in self._unary)

    def _left(self, f: int) -> Table:
        """Return a term less all that it has sent."""
        return np.asarray(_less(self._passed.exact_table(f), self._messages[f]))


def _added(arrays: Sequence[Any], more: Any) -> list[Any]:
    """Return every array plus another, None counting as zeros; an array that occurs twice is added to once."""
    distinct = {id(array): array for array in arrays}
    sums = {key: more if array is None else array + more for key, array in distinct.items()}
    return [sums[id(array)] for array in arrays]


def _less(table: NDArray[Any], messages: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return a table less a message along each of its axes."""
    for axis, message in enumerate(messages):
        table = table - message.reshape(_along(axis, table.ndim))
    return table


def _along(axis: int, rank: int) -> list[int]:
    """Return the shape in which a vector lies along an axis."""
    return [-1 if a == axis else 1 for a in range(rank)]


def breadth_first(count: int, scopes: Iterable[Scope]) -> list[int]:
    """Return the variables so that neighbours are close: breadth-first from an end (Cuthill and McKee 1969).

    What is known at one end of a chain then reaches the other in one sweep.
    """
    adjacent = neighbours(count, scopes)
    ordered = [sorted(around, key=lambda u: (len(adjacent[u]), u)) for v, around in enumerate(adjacent)]
    order: list[int] = []
    seen = [False] * count
    for v in sorted(range(count), key=lambda v: (len(adjacent[v]), v)):
        if not seen[v]:
            end = _spread_from(v, ordered, [False] * count)[-1]
            order += _spread_from(end, ordered, seen)
    return order


def _spread_from(start: int, adjacent: Sequence[Sequence[int]], seen: list[bool]) -> list[int]:
    seen[start] = True
    order, waiting = [], deque([start])
    while waiting:
        v = waiting.popleft()
        order.append(v)
        for u in adjacent[v]:
            if not seen[u]:
                seen[u] = True
                waiting.append(u)
    return order
