"""Coarse to fine: solve over groups of states, drop groups that only worse choices have, divide the others.

Over groups, every term costs the minimum over the groups' members. Therefore the optimum is a lower bound, and the
least cost with a given group bounds every choice with one of its members (Raphael 2001). The representatives of the
groups form a problem of the same size, whose optimum is a choice. The rest is often small enough to be solved whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table, Tables
from planner.search.solver.elimination import (
    NOTHING_ELIMINATED,
    Order,
    eliminate_variables,
    lockstep_order,
    states_of_least_cost,
)
from planner.search.solver.model import Model, OpenStates, problem_with_small_terms_absorbed
from planner.search.solver.problem import NO_BOUND, Limits, Problem, simplified_problem

# The quotient of a problem by groups of states: a term costs the minimum over the groups' members.


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


# The state of a search, which every stage takes and returns with a better incumbent or bound.


class SearchState(Struct, frozen=True, eq=False):
    """The incumbent (the best choice so far), its cost, a lower bound, and the states of better choices.

    `open_states` are the states of every variable that a better choice may have. `bounds` are lower bounds on the cost
    of every choice with each of them; NO_BOUND if nothing is known. `order` is the elimination that proved the
    incumbent, if any.
    """

    incumbent: tuple[int, ...]
    cost: int
    lower: int
    open_states: OpenStates
    bounds: tuple[Table, ...]
    order: Order = NOTHING_ELIMINATED

    @classmethod
    def of_choice(cls, model: Model, choice: Sequence[int]) -> SearchState:
        """Return the state in which only one choice is known."""
        open_states = tuple(tuple(range(size)) for size in model.sizes)
        bounds = tuple(np.full(size, NO_BOUND) for size in model.sizes)
        return cls(tuple(choice), model.value(choice), NO_BOUND, open_states, bounds)

    @property
    def is_proved(self) -> bool:
        """True if no choice costs less than the incumbent."""
        return self.lower >= self.cost

    @property
    def gap(self) -> float:
        """Optimality gap: the largest fraction of the incumbent's cost by which it may exceed the optimum."""
        return (self.cost - self.lower) / max(1, abs(self.cost))

    def with_choice_offered(self, model: Model, choice: Sequence[int]) -> SearchState:
        """Return this state with a choice taken if it is better, and without the states that it rules out."""
        cost = model.value(choice)
        return (
            replace(self, incumbent=tuple(choice), cost=cost)._without_ruled_out_states() if cost < self.cost else self
        )

    def with_lower_bound(self, lower: int) -> SearchState:
        """Return this state with a lower bound on every cost."""
        return replace(self, lower=max(self.lower, lower))

    def with_open_states_solved(self, model: Model, choice: Sequence[int], order: Order) -> SearchState:
        """Return this state with the best of the open choices, found by an elimination in `order`.

        No other choice is better. Of equal choices it is taken, as the first in order of preference, so that a plan
        does not depend on the start.
        """
        cost = model.value(choice)
        incumbent = tuple(choice) if cost <= self.cost else self.incumbent
        least = min(cost, self.cost)
        return replace(self, incumbent=incumbent, cost=least, lower=max(self.lower, least), order=order)

    def with_state_bounds(self, open_states: Sequence[Sequence[int]], bounds: Sequence[Table]) -> SearchState:
        """Return this state with bounds of states, and without the states that they rule out.

        The bounds include those of all open states.
        """
        merged = []
        for states, before, of, new in zip(self.open_states, self.bounds, open_states, bounds, strict=True):
            at = {state: i for i, state in enumerate(of)}
            merged.append(np.maximum(before, new[[at[state] for state in states]]))
        return replace(self, bounds=tuple(merged))._without_ruled_out_states()

    def _without_ruled_out_states(self) -> SearchState:
        """Return this state without the states whose bounds exclude any better choice."""
        alive = [np.flatnonzero(bounds < self.cost) for bounds in self.bounds]
        if not all(map(len, alive)):
            return self.with_lower_bound(self.cost)
        open_states = tuple(tuple(of[at] for at in mine) for of, mine in zip(self.open_states, alive, strict=True))
        return replace(
            self, open_states=open_states, bounds=tuple(b[mine] for b, mine in zip(self.bounds, alive, strict=True))
        )

    def open_states_by_colour(self, model: Model) -> OpenStates:
        """Return, per variable, the states that are open for it or for another variable of its colour."""
        if sum(map(len, self.open_states)) == sum(model.sizes):
            return self.open_states
        together: dict[int, set[int]] = defaultdict(set)
        for colour, states in zip(model.colours_of_variables, self.open_states, strict=True):
            together[colour].update(states)
        ordered = {colour: tuple(sorted(states)) for colour, states in together.items()}
        return tuple(ordered[colour] for colour in model.colours_of_variables)


# Coarse to fine.


def solve_over_groups(
    model: Model, search: SearchState, limits: Limits, representatives: Representatives
) -> SearchState:
    """Return the search state after solving the quotient; unchanged if that is not worth its time.

    `representatives` gives, per variable, the representative of each state.
    """
    tuning = limits.tuning
    if sum(model.sizes) <= tuning.few_states:
        return search
    if sum(len(np.unique(of)) for of in representatives) > tuning.quotient_part * sum(model.sizes):
        return search
    whole = problem_with_small_terms_absorbed(model.problem)
    entries = sum(whole.tables[number].size for number in {number for _, number in whole.terms})
    if entries > min(tuning.table_entries, tuning.table_entries_per_s * limits.seconds):
        return search
    everything = [range(size) for size in model.sizes]
    return _search_with_quotient(model, search, limits, Quotient(whole, representatives, everything))


def solve_over_halved_groups(
    model: Model, search: SearchState, limits: Limits, representatives: Representatives
) -> SearchState:
    """Return the search state after solving the quotient of split groups: each representative, and the rest."""
    open_states = search.open_states_by_colour(model)
    halves = [_groups_halved(states, of) for of, states in zip(representatives, open_states, strict=True)]
    whole = problem_with_small_terms_absorbed(model.exact_problem(open_states))
    return _search_with_quotient(model, search, limits, Quotient(whole, halves, open_states))


def _search_with_quotient(model: Model, search: SearchState, limits: Limits, quotient: Quotient) -> SearchState:
    """Return the search state after solving a quotient."""
    tuning = limits.tuning
    limits = replace(limits, operations=min(limits.operations, tuning.operations_per_s * limits.seconds))
    order = _order_within_limits(quotient.least, limits)
    if order is None:
        return search
    elimination = eliminate_variables(quotient.least, order.variables, whole=True)
    groups = elimination.completed_choice({})
    least = quotient.least.value(groups)
    search = search.with_lower_bound(least)
    search = search.with_choice_offered(model, quotient.states_standing_for(groups))
    if search.gap > tuning.close and (order := _order_within_limits(quotient.standing, limits)) is not None:
        groups = states_of_least_cost(quotient.standing, order)
        search = search.with_choice_offered(model, quotient.states_standing_for(groups))
    if search.is_proved:
        return search
    marginals = elimination.min_marginals(least, search.cost, tuning.near_choices)
    if marginals is None:
        return search
    bounds = [costs[quotient.groups_of_states(v)] for v, costs in enumerate(marginals)]
    return search.with_state_bounds(quotient.open_states, bounds)


def _order_within_limits(problem: Problem, limits: Limits) -> Order | None:
    order = lockstep_order(problem.sizes, problem.terms, limits.operations, limits.tuning)
    return order if order.fits_limits(limits.memory_bytes, limits.operations) else None


def _groups_halved(states: Sequence[int], representatives: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the groups of some states, by position: a representative is alone, the others of its group are together.

    `representatives` gives the representative of every state.
    """
    first: dict[tuple[int, bool], int] = {}
    groups = []
    for at, state in enumerate(states):
        of = int(representatives[state])
        groups.append(first.setdefault((of, of == state), at))
    return np.array(groups, dtype=np.intp)
