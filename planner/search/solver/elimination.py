"""Exact min-sum by variable elimination: dynamic programming over any graph of small width.

On a chain this is the dynamic programming of the papers. A greedy dry run, which knows all table sizes in advance,
determines the order; variables with equal surroundings are computed once.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf, prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.search.costs.tables import Scope, Table, Term
from planner.search.solver.problem import Problem, neighbours_by_variable, surroundings_of_variable, terms_by_variable

KEPT_BYTES = 4
"""Bytes per entry of a large table that elimination keeps, if its costs differ by less than 2^32."""


class Order(Struct, frozen=True):
    """An elimination order and its cost.

    It is `complete` if it names every variable; otherwise the next one would have exceeded a limit. `width` is the
    largest number of variables in an intermediate table, `largest_entries` the size of the largest table, `entries`
    that of all tables, and `operations` the number of additions. Only a lockstep order counts equal tables once.
    """

    variables: tuple[int, ...]
    width: int
    largest_entries: float
    entries: float
    operations: float
    complete: bool

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest table, capped at 2^62."""
        return int(min(self.largest_entries, 2.0**60)) * KEPT_BYTES

    def fits_limits(self, memory_bytes: int, operations: float) -> bool:
        """Return True if the tables and the work stay within the limits."""
        return self.complete and self.entries * KEPT_BYTES <= memory_bytes and self.operations <= operations


NOTHING_ELIMINATED = Order((), 0, 0.0, 0.0, 0.0, complete=True)


def greedy_order(
    sizes: Sequence[int], scopes: Sequence[Scope], most_entries: float = inf, most_operations: float = inf
) -> Order:
    """Return the order that always eliminates the variable that leaves the smallest table.

    It ends before a table of more than `most_entries`, and after more than `most_operations`.
    """
    adjacent = neighbours_by_variable(len(sizes), scopes)
    size_of = [float(size) for size in sizes].__getitem__

    def entries_left_by_variable(v: int) -> float:
        return prod(map(size_of, adjacent[v]), start=1.0)

    score = {v: entries_left_by_variable(v) for v in range(len(sizes))}
    heap = [(entries, v) for v, entries in score.items()]
    heapq.heapify(heap)
    order, width, largest, total, operations = [], 0, 1.0, 0.0, 0.0
    while heap:
        entries, v = heapq.heappop(heap)
        if entries > most_entries or operations > most_operations:
            break
        if score.get(v) != entries:
            continue
        del score[v]
        order.append(v)
        width, largest = max(width, len(adjacent[v])), max(largest, entries)
        total += entries
        operations += entries * sizes[v]
        for u in adjacent[v]:
            adjacent[u] |= adjacent[v]
            adjacent[u].discard(u)
            adjacent[u].discard(v)
        for u in adjacent[v]:
            if u in score and (now := entries_left_by_variable(u)) != score[u]:
                score[u] = now
                heapq.heappush(heap, (now, u))
    return Order(tuple(order), width, largest, total, operations, not score)


def greedy_order_of_problem(problem: Problem, most_operations: float = inf) -> Order:
    """Return the greedy order of a problem; it ends after `most_operations`."""
    return greedy_order(problem.sizes, [scope for scope, _ in problem.terms], most_operations, most_operations)


class _Eliminated(Struct, frozen=True):
    variable: int
    neighbours: Scope
    terms: tuple[tuple[int, Scope], ...]


class Elimination(Struct):
    """A problem with some variables eliminated: `remaining` has the same minimum over the others."""

    problem: Problem
    remaining: Problem
    trail: list[_Eliminated]

    def completed_choice(self, states: dict[int, int]) -> list[int]:
        """Return the best state of every variable given the states of the kept variables; of equals, the first."""
        tables, least = self.problem.tables, dict[object, int]()
        for step in reversed(self.trail):
            at = tuple([states[u] for u in step.neighbours])
            state = least.get((step.terms, at))
            if state is None:
                values = tables.sum_along_first_axis(step.terms, at, self.problem.sizes[step.variable])
                state = least[step.terms, at] = int(values.argmin())
            states[step.variable] = state
        return [states[v] for v in range(len(self.problem.sizes))]

    def min_marginals(self, least: int, below: int, most_choices: int) -> list[Table] | None:
        """Return, per variable, the least cost with each state: [state]; `below` if that is no less than `below`.

        `least` is the overall minimum. Only choices that cost less than `below` are enumerated, from the last variable
        to the first, for one variable and its neighbours at a time. Return None if there are more than `most_choices`.
        The elimination must have been `whole`.
        """
        place = {step.variable: i for i, step in enumerate(self.trail)}
        marginals: list[Table] = [np.empty(0, dtype=np.int64)] * len(self.trail)
        near: dict[int, tuple[Scope, NDArray[np.intp], Table]] = {}
        for step in reversed(self.trail):
            nearby, costs = np.zeros((1, 0), dtype=np.intp), np.array([least])
            if step.neighbours:
                scope, choices, costs = near[min(step.neighbours, key=place.__getitem__)]
                nearby = choices[:, [scope.index(u) for u in step.neighbours]]
                nearby, costs = distinct_choices(nearby, costs, [self.problem.sizes[u] for u in step.neighbours])
            size = self.problem.sizes[step.variable]
            if len(costs) * size > most_choices:
                return None
            values = np.zeros((len(costs), size), dtype=np.int64)
            for number, positions in step.terms:
                at = [np.arange(size) if p == 0 else nearby[:, p - 1, None] for p in positions]
                values += self.problem.tables.part_of_table(number, tuple(at))
            values += (costs - values.min(axis=1))[:, None]
            marginals[step.variable] = values.min(axis=0, initial=below)
            rows, states = np.nonzero(values < below)
            near[step.variable] = (
                (step.variable, *step.neighbours),
                np.column_stack([states, nearby[rows]]),
                values[rows, states],
            )
        return marginals


def distinct_choices(choices: NDArray[np.intp], costs: Table, sizes: Sequence[int]) -> tuple[NDArray[np.intp], Table]:
    """Return the distinct rows of choices, each with its least cost."""
    keys = np.ravel_multi_index(tuple(choices.T), sizes)
    order = np.lexsort((costs, keys))
    first = order[np.flatnonzero(np.diff(keys[order], prepend=-1))]
    return choices[first], costs[first]


def eliminate_variables(problem: Problem, order: Sequence[int], *, whole: bool = False) -> Elimination:
    """Eliminate the variables of `order`, in that order.

    With `whole`, a variable leaves one table over all its neighbours, even if it is a sum of smaller tables.
    """
    tables = problem.tables
    terms: list[Term] = list(problem.terms)
    open_states = [set(positions) for positions in terms_by_variable(terms, len(problem.sizes))]
    trail, constant = [], problem.constant
    gone: set[int] = set()
    for v in order:
        mine = sorted(open_states[v])
        neighbours, shape = surroundings_of_variable(v, [terms[position] for position in mine])
        for position in mine:
            for u in terms[position][0]:
                open_states[u].discard(position)
        gone.update(mine)
        trail.append(_Eliminated(v, neighbours, shape))
        if not shape:
            continue
        sizes = (problem.sizes[v], *(problem.sizes[u] for u in neighbours))
        least, left = tables.minimum_over_first_axis(shape, sizes)
        constant += least
        for axes, part in ((tuple(range(len(neighbours))), left),) if whole else tables.separable_parts(left):
            if not axes:
                constant += int(tables[part])
                continue
            scope = tuple(neighbours[axis] for axis in axes)
            for u in scope:
                open_states[u].add(len(terms))
            terms.append((scope, part))
    remaining = tuple(term for position, term in enumerate(terms) if position not in gone)
    return Elimination(problem, Problem(tables, problem.sizes, remaining, constant), trail)


def states_of_least_cost(problem: Problem, order: Order | None = None) -> list[int]:
    """Return one state per variable with the least total cost."""
    if order is None:
        order = greedy_order_of_problem(problem)
    return eliminate_variables(problem, order.variables).completed_choice({})
