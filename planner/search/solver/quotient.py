"""The quotient of a problem by groups of states: a term costs the minimum over the groups' members."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table, Tables
from planner.search.solver.problem import Problem, simplified_problem

LARGE_ENTRIES = 1 << 18
"""Larger tables are not copied to reorder them."""

Representatives = Sequence[NDArray[np.intp]]
"""Per variable, the representative of every state, by number: [state]. States with one representative are a group."""


class Quotient:
    """A problem over groups of states, in the order of their representatives.

    In `least` a term costs the minimum over the members, in `standing` its cost for the representatives; both use
    `tables`. `open_states` are the grouped states of the variables, by their numbers in the model.
    """

    def __init__(
        self, problem: Problem, representatives: Representatives, open_states: Sequence[Sequence[int]]
    ) -> None:
        self.open_states = open_states
        self._groups = [_Groups.of_representatives(of) for of in representatives]
        self.tables = Tables()
        numbers: dict[object, tuple[int, int]] = {}
        terms: list[tuple[Scope, int, int]] = []
        for scope, number in sorted(problem.terms, key=lambda term: term[1]):
            of = [self._groups[v] for v in scope]
            key = (number, *(groups.key for groups in of))
            if key not in numbers:
                numbers[key] = self._numbers_over_groups(problem.tables[number], of)
            terms.append((scope, *numbers[key]))
        sizes = tuple(len(groups.standing) for groups in self._groups)
        least, standing = (tuple((scope, pair[which]) for scope, *pair in terms) for which in range(2))
        self.least = simplified_problem(Problem(self.tables, sizes, least, problem.constant))
        self.standing = simplified_problem(Problem(self.tables, sizes, standing, problem.constant))

    def _numbers_over_groups(self, table: Table, of: Sequence[_Groups]) -> tuple[int, int]:
        """Return the numbers of two tables over groups: the members' minimum, and the representatives' entries."""
        standing, least = table[np.ix_(*(groups.standing for groups in of))], table
        for axis, groups in enumerate(of):
            least = groups.least_over_groups(least, axis)
        return self.tables.intern(least), self.tables.intern(standing)

    def states_standing_for(self, chosen: Sequence[int]) -> list[int]:
        """Return the representatives of the chosen groups, by their numbers in the model."""
        return [
            of[int(groups.standing[group])]
            for of, groups, group in zip(self.open_states, self._groups, chosen, strict=True)
        ]

    def groups_of_states(self, v: int) -> NDArray[np.intp]:
        """Return the group of every state of a variable: [state]."""
        return self._groups[v].of_state


class _Groups(Struct, frozen=True):
    """The groups of a variable's states: representatives, all states ordered by group, and the start of each group."""

    key: bytes
    of_state: NDArray[np.intp]
    standing: NDArray[np.intp]
    order: NDArray[np.intp]
    first: NDArray[np.intp]

    @classmethod
    def of_representatives(cls, representatives: NDArray[np.intp]) -> _Groups:
        standing, group, sizes = np.unique(representatives, return_inverse=True, return_counts=True)
        order, first = np.argsort(group, kind="stable"), np.cumsum(sizes) - sizes
        return cls(representatives.tobytes(), group, standing, order, first)

    def least_over_groups(self, table: Table, axis: int) -> Table:
        """Return the table with the minimum over each group along an axis."""
        if len(self.first) == len(self.order):
            return table
        if axis == 0 and table.ndim > 1 and table.size > LARGE_ENTRIES:
            return self._least_over_groups_by_row(table)
        return np.asarray(np.minimum.reduceat(table.take(self.order, axis=axis), self.first, axis=axis))

    def _least_over_groups_by_row(self, table: Table) -> Table:
        """Return the minimum over each group along axis 0 without a copy of the table."""
        least = table[self.order[self.first]]
        for row, start, end in zip(least, self.first, [*self.first[1:], len(self.order)], strict=True):
            for member in self.order[start + 1 : end]:
                np.minimum(row, table[member], out=row)
        return least
