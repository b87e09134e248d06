"""From coarse to fine: states merged into groups, every term costing the least of what it costs over their members.

The optimum over groups is a lower bound. Where all terms cost as much for the members that stand for the groups that
were chosen, these are the optimum itself; where one costs less, the groups that let it are divided (Raphael 2001).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table, Tables
from planner.search.minsum.problem import Problem, simplified

Representatives = Sequence[NDArray[np.intp]]
"""Per variable, [state]: the state that stands for it, by number; states with one such are a group."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """A term whose table is made when it is asked for; those of one `key` are equal."""

    scope: Scope
    key: Hashable
    table: Callable[[], Table]


@dataclass(frozen=True, slots=True)
class _Made:
    """A term over groups: the number of its table, and what the members that stand for them cost, if that is more."""

    number: int
    standing: Table | None


class Merged:
    """A problem's states in groups."""

    def __init__(self, terms: Sequence[Lazy], groups: Representatives) -> None:
        keys: dict[Hashable, int] = {}
        order = sorted(range(len(terms)), key=lambda i: keys.setdefault(terms[i].key, len(keys)))
        self._terms = [terms[i] for i in order]
        self._of = [of.copy() for of in groups]
        self._tables = Tables()
        self._made: dict[object, _Made] = {}
        self._now: list[_Made] = []

    def problem(self) -> Problem:
        """Return the problem of choosing a group for every variable; groups are in order of who stands for them."""
        groups = [_Groups.of(of) for of in self._of]
        self._now = []
        for _, alike in groupby(self._terms, key=lambda term: term.key):
            self._now += self._all_made(list(alike), groups)
        terms = tuple((term.scope, made.number) for term, made in zip(self._terms, self._now, strict=True))
        sizes = tuple(len(one.standing) for one in groups)
        return simplified(Problem(self._tables, sizes, terms))

    def _all_made(self, terms: Sequence[Lazy], groups: Sequence[_Groups]) -> Iterator[_Made]:
        """Yield the terms of one table over groups; the table is made at most once."""
        table: Table | None = None
        for term in terms:
            of = [groups[v] for v in term.scope]
            key = (term.key, *(one.key for one in of))
            if key not in self._made:
                table = term.table() if table is None else table
                self._made[key] = self._make(table, of)
            yield self._made[key]

    def _make(self, table: Table, groups: Sequence[_Groups]) -> _Made:
        standing = table[np.ix_(*(one.standing for one in groups))]
        for axis, one in enumerate(groups):
            table = one.least(table, axis)
        return _Made(self._tables.intern(table), standing if (standing > table).any() else None)

    def standing(self, chosen: Sequence[int]) -> list[int]:
        """Return the states that stand for the groups chosen."""
        return [int(np.unique(of)[group]) for of, group in zip(self._of, chosen, strict=True)]

    def divide(self, chosen: Sequence[int]) -> bool:
        """Divide the chosen groups in which a term costs less than for those that stand for them, if any."""
        states = self.standing(chosen)
        divided = set()
        for term, made in zip(self._terms, self._now, strict=True):
            at = tuple(chosen[v] for v in term.scope)
            if made.standing is not None and made.standing[at] > self._tables[made.number][at]:
                divided |= {v for v in term.scope if np.count_nonzero(self._of[v] == states[v]) > 1}
        for v in divided:
            members = np.flatnonzero(self._of[v] == states[v])
            self._of[v][members] = members
        return bool(divided)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The groups of a variable's states: who stands for each, and all states by group, where each group begins."""

    key: bytes
    standing: NDArray[np.intp]
    order: NDArray[np.intp]
    first: NDArray[np.intp]

    @classmethod
    def of(cls, representatives: NDArray[np.intp]) -> _Groups:
        standing, group, sizes = np.unique(representatives, return_inverse=True, return_counts=True)
        return cls(representatives.tobytes(), standing, np.argsort(group, kind="stable"), np.cumsum(sizes) - sizes)

    def least(self, table: Table, axis: int) -> Table:
        """Return the table with the least over each group along an axis."""
        if len(self.first) == len(self.order):
            return table
        return np.asarray(np.minimum.reduceat(table.take(self.order, axis=axis), self.first, axis=axis))
