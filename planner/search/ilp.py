"""The joint search as an integer linear program, solved by HiGHS: an oracle for small graphs.

Nothing is shared with `joint` but the cost tables. One binary column per state of a variable, one column per entry of
a table over several variables, and rows that make the columns' sums along every axis equal (the local polytope).
Where the binary columns are integral, the others are too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import scipy  # its modules are loaded when first used: they take longer than many a plan
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.search.solver.limits import Limits
from planner.search.solver.problem import Problem
from planner.search.space import Outcome, Space

MOST_COLUMNS = 200_000
"""Beyond this HiGHS takes minutes."""

ABSOLUTE_TOLERANCE = 1e-6
"""HiGHS's feasibility tolerance; one state of every variable and one entry of every table may be off by as much."""

RELATIVE_TOLERANCE = 1e-9
"""What sums in double precision may be off by."""


def ilp(space: Space, limits: Limits) -> Outcome:
    """Return a best plan, found by scipy's HiGHS with a relative gap of 0.

    The plan's cost is recounted from the integer tables. HiGHS computes in double precision, so its dual bound is
    believed but for a tolerance, then rounded up to the next cost that a plan can have. The plan is best, so far as
    HiGHS can be believed, where `lower_bound` equals its cost; `tolerance` among the details says, in units of cost,
    what this rests on. Raises a PlanError for graphs too large, and where HiGHS finds no plan in the limits' seconds.
    """
    candidates = [space.candidates(v) for v in range(len(space.coarse.variables))]
    problem = space.problem(candidates)
    program = Program.of(problem)
    if program.columns > MOST_COLUMNS:
        raise PlanError(
            f"expected a graph small enough for ilp, at most {MOST_COLUMNS} columns, found {program.columns} "
            f"({len(problem.sizes)} variables, {len(problem.terms)} tables); joint has no such limit"
        )
    if not program.columns:  # nothing to choose
        return Outcome((), problem.constant, problem.constant, {"columns": 0, "rows": 0, "tolerance": 0})
    found = program.solve(limits.seconds)
    states = program.states(found.x)
    choice = tuple(space.domain(v, candidates[v]).states[state] for v, state in enumerate(states))
    cost = problem.value(states)
    lower, tolerance = program.bound(found)
    details = {"columns": program.columns, "rows": program.rows, "tolerance": tolerance}
    return Outcome(choice, cost, min(lower, cost), details)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The integer program: costs are `constant` + `unit` * (`costs` of the columns that are 1).

    The columns of a variable's states come first, from `starts` of that variable on.
    """

    problem: Problem
    starts: tuple[int, ...]
    costs: NDArray[np.float64]
    constant: int
    unit: int

    @classmethod
    def of(cls, problem: Problem) -> Program:
        """Return the program of a problem: each table less its minimum, in units of all entries' common divisor."""
        tables = [(scope, problem.tables[number]) for scope, number in problem.terms]
        constant = problem.constant + sum(int(table.min()) for _, table in tables)
        above = [(scope, table - table.min()) for scope, table in tables]
        unit = math.gcd(*(int(np.gcd.reduce(table, axis=None)) for _, table in above)) or 1
        starts = tuple(accumulate(problem.sizes, initial=0))
        single = np.zeros(starts[-1])
        for scope, table in above:
            if len(scope) == 1:
                single[starts[scope[0]] : starts[scope[0] + 1]] += table / unit
        several = [(table / unit).reshape(-1) for scope, table in above if len(scope) > 1]
        return cls(problem, starts, np.concatenate([single, *several]), constant, unit)

    @property
    def columns(self) -> int:
        """One per state of a variable and per entry of a table over several."""
        return len(self.costs)

    @property
    def rows(self) -> int:
        """One per variable, and one per state of each variable of a table over several."""
        axes = sum(self.problem.sizes[v] for scope, _ in self.problem.terms if len(scope) > 1 for v in scope)
        return len(self.problem.sizes) + axes

    def solve(self, seconds: float) -> scipy.optimize.OptimizeResult:
        """Run HiGHS; PlanError where it ends without a plan."""
        right = np.zeros(self.rows)
        right[: len(self.problem.sizes)] = 1
        integral = np.zeros(self.columns, dtype=np.int64)
        integral[: self.starts[-1]] = 1
        found = scipy.optimize.milp(
            self.costs,
            integrality=integral,
            bounds=scipy.optimize.Bounds(0, 1),
            constraints=scipy.optimize.LinearConstraint(self._matrix(), right, right),
            options={"mip_rel_gap": 0, "time_limit": seconds},
        )
        if found.x is None:
            raise PlanError(f"ilp: expected a plan within {seconds:g} s, HiGHS found none: {found.message}")
        return found

    def states(self, values: NDArray[np.float64]) -> list[int]:
        """Return every variable's state: the column that is 1."""
        bounds = zip(self.starts[:-1], self.starts[1:], strict=True)
        return [int(values[start:stop].argmax()) for start, stop in bounds]

    def bound(self, found: scipy.optimize.OptimizeResult) -> tuple[int, int]:
        """Return the cost below which no plan lies, and the tolerance on which this rests, rounded up."""
        dual = max(0.0, float(found.mip_dual_bound))
        chosen = len(self.problem.sizes) + len(self.problem.terms)
        tolerance = ABSOLUTE_TOLERANCE * chosen + RELATIVE_TOLERANCE * abs(dual)
        units = math.ceil(dual - tolerance)
        return self.constant + self.unit * units, math.ceil(tolerance * self.unit)

    def _matrix(self) -> scipy.sparse.csr_array:
        """Return the rows: a variable has one state; a table's entries sum, per state of an axis, to that state."""
        parts = [*self._choices(), *self._sums()]
        rows, columns, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return scipy.sparse.csr_array((values, (rows, columns)), shape=(self.rows, self.columns))

    def _choices(self) -> Iterator[_Entries]:
        for v, size in enumerate(self.problem.sizes):
            yield _entries(np.full(size, v), range(self.starts[v], self.starts[v + 1]), 1)

    def _sums(self) -> Iterator[_Entries]:
        row, column = len(self.problem.sizes), self.starts[-1]
        for scope, _ in self.problem.terms:
            if len(scope) < 2:
                continue
            at = np.indices([self.problem.sizes[v] for v in scope]).reshape(len(scope), -1)
            for v, states in zip(scope, at, strict=True):
                size = self.problem.sizes[v]
                yield _entries(row + states, range(column, column + at.shape[1]), 1)
                yield _entries(row + np.arange(size), range(self.starts[v], self.starts[v] + size), -1)
                row += size
            column += at.shape[1]


_Entries = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Rows, columns and values of a sparse matrix."""


def _entries(rows: NDArray[np.int64], columns: Iterable[int], value: float) -> _Entries:
    return rows, np.fromiter(columns, dtype=np.int64, count=len(rows)), np.full(len(rows), value)
