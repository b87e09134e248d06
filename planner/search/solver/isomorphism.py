"""Isomorphic parts of a problem: colours, and elimination in lockstep, so that each part is computed once.

A deep network repeats the same layer many times. Variables of one colour keep the same states. The elimination takes
all variables with equal surroundings one after the other and reuses the first one's table. A greedy order would follow
single variables, whose surroundings soon differ from layer to layer.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import prod

from planner.grouping import numbered_values
from planner.search.costs.tables import Scope, Shape, Term
from planner.search.solver.elimination import Order
from planner.search.solver.problem import Tuning, surroundings_of_variable, terms_by_variable

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
