"""Exact min-sum by variable elimination: dynamic programming over any graph of small width.

On a chain this is the dynamic programming of the papers. A greedy dry run, which knows all table sizes in advance,
determines the order; variables with equal surroundings are computed once.

A deep network repeats the same layer many times. Variables of one colour keep the same states. The elimination in
lockstep takes all variables with equal surroundings one after the other and reuses the first one's table. A greedy
order would follow single variables, whose surroundings soon differ from layer to layer.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import inf, prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.grouping import numbered_values
from planner.search.costs.tables import Scope, Shape, Table, Term
from planner.search.solver.problem import (
    Problem,
    Tuning,
    neighbours_by_variable,
    surroundings_of_variable,
    terms_by_variable,
)

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


SPREADS = (0.25, 0.5, 0.75, 1.0)
"""Standard deviations of the logarithm of the random factor on scores, in turn, for every order but the first."""

Kind = tuple[Shape, tuple[int, ...]]
"""A variable's surroundings: terms as positions among it and its neighbours, and the sizes of all of these."""


def colours_of_variables(kinds: Sequence[Hashable], terms: Sequence[Term], rounds: int) -> list[int]:
    """Return a colour per variable: equal for equal kinds with equal terms within `rounds` terms.

    This is colour refinement (Weisfeiler and Leman 1968), stopped early: layers in the middle of a deep network then
    get the same colours, although each has a different distance from its ends.
    """
    terms_of = terms_by_variable(terms, len(kinds))
    colours, _ = numbered_values(kinds)
    for _ in range(rounds):
        near = [
            sorted((terms[f][1], terms[f][0].index(v), tuple(colours[u] for u in terms[f][0])) for f in mine)
            for v, mine in enumerate(terms_of)
        ]
        colours, _ = numbered_values((colour, tuple(of)) for colour, of in zip(colours, near, strict=True))
    return colours


def lockstep_order(
    sizes: Sequence[int], terms: Sequence[Term], most_operations: float, tuning: Tuning, orders: int | None = None
) -> Order:
    """Return the cheapest of a few greedy orders; their sizes and work count equal tables once.

    The next variables are those of the kind that leaves the smallest table, divided by the number of variables of that
    kind. No other order is tried if the first takes far more than `most_operations`, or if trying would take longer
    than it can save.
    """
    chance, tries = random.Random(0), tuning.orders if orders is None else orders
    best = _Lockstep(sizes, terms, 0.0, chance).elimination_order(
        most_operations * (tuning.hoped_gain if tries > 1 else 1)
    )
    if best.complete:
        for number in range(1, tries):
            if number * len(sizes) * tuning.ordering_operations > tuning.ordering_part * best.operations:
                break
            order = _Lockstep(sizes, terms, SPREADS[number % len(SPREADS)], chance).elimination_order(best.operations)
            if order.complete and order.operations < best.operations:
                best = order
    return best


class _Lockstep:
    """A dry run of an elimination, which tracks the variables of each kind."""

    def __init__(self, sizes: Sequence[int], terms: Sequence[Term], spread: float, chance: random.Random) -> None:
        self._sizes = sizes
        self._terms = list(terms)
        self._live = [set(positions) for positions in terms_by_variable(self._terms, len(self._sizes))]
        self._spread, self._chance = spread, chance
        self._surroundings: dict[int, tuple[Kind, Scope]] = {}
        self._members: dict[Kind, set[int]] = defaultdict(set)
        self._left_by: dict[Kind, float] = {}
        self._tables: dict[Kind, int] = {}
        self._heap: list[tuple[float, int, Kind]] = []
        for kind in {self._enter_variable(v) for v in range(len(self._sizes))}:
            self._push_kind_on_heap(kind)

    def elimination_order(self, most_operations: float) -> Order:
        """Return the order; it ends after `most_operations`."""
        order: list[int] = []
        width, largest, entries, operations = 0, 1.0, 0.0, 0.0
        while self._heap and operations <= most_operations:
            score, _, kind = heapq.heappop(self._heap)
            if not self._members[kind] or score != self._score_of_kind(kind):
                continue
            changed = set()
            while self._members[kind]:
                v = min(self._members[kind])
                if kind not in self._tables:
                    self._tables[kind] = ~len(self._tables)
                    left = prod(kind[1][1:], start=1.0)
                    width, largest = max(width, len(kind[1]) - 1), max(largest, left)
                    entries += left
                    operations += left * kind[1][0]
                order.append(v)
                changed |= self._eliminate_variable(v)
            for other in changed:
                self._push_kind_on_heap(other)
        return Order(tuple(order), width, largest, entries, operations, len(order) == len(self._sizes))

    def _eliminate_variable(self, v: int) -> set[Kind]:
        """Remove a variable; return the kinds that its neighbours had and have."""
        kind, neighbours = self._leave_variable(v)
        for position in list(self._live[v]):
            for u in self._terms[position][0]:
                self._live[u].discard(position)
        if neighbours:
            for u in neighbours:
                self._live[u].add(len(self._terms))
            self._terms.append((neighbours, self._tables[kind]))
        changed = set()
        for u in neighbours:
            changed |= {self._leave_variable(u)[0], self._enter_variable(u)}
        return changed

    def _enter_variable(self, v: int) -> Kind:
        neighbours, shape = surroundings_of_variable(v, [self._terms[position] for position in sorted(self._live[v])])
        kind = shape, (self._sizes[v], *(self._sizes[u] for u in neighbours))
        self._surroundings[v] = kind, neighbours
        self._members[kind].add(v)
        if kind not in self._left_by:
            self._left_by[kind] = prod(kind[1][1:], start=1.0) * self._chance.lognormvariate(0, self._spread)
        return kind

    def _leave_variable(self, v: int) -> tuple[Kind, Scope]:
        kind, neighbours = self._surroundings.pop(v)
        self._members[kind].discard(v)
        return kind, neighbours

    def _score_of_kind(self, kind: Kind) -> float:
        return self._left_by[kind] / len(self._members[kind])

    def _push_kind_on_heap(self, kind: Kind) -> None:
        if self._members[kind]:
            heapq.heappush(self._heap, (self._score_of_kind(kind), min(self._members[kind]), kind))
