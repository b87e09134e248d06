"""Elimination orders for problems whose parts look alike: what looks alike goes together and is worked out once.

In a deep network the same layer occurs many times. A greedy order follows single variables, whose surroundings soon
differ from layer to layer; here all variables with equal surroundings are eliminated one after the other, each by the
table that was made for the first of them.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from math import inf, prod

from planner.search.costs.tables import Scope, Shape, Term
from planner.search.minsum.elimination import Order
from planner.search.minsum.problem import Problem, around, by_variable

TRIES = 32
"""So many orders are looked for at most."""

TRYING_PART = 0.2
"""Looking for them may take this part of the work of the best."""

TRY_OPERATIONS = 5e4
"""Looking for one order takes as long as so many operations for each variable."""

SPREADS = (0.25, 0.5, 0.75, 1.0)
"""All but the first are looked for with scores off by chance: standard deviations of their logarithms, in turn."""

GAIN = 8.0
"""How many times less work than the first another order may be hoped to take."""

Kind = tuple[Shape, tuple[int, ...]]
"""A variable's surroundings: terms as positions among it and its neighbours, and the sizes of all of these."""


def lockstep_order(problem: Problem, most_operations: float = inf, tries: int = TRIES) -> Order:
    """Return the order of least work of a few greedy ones, whose sizes and work count equal tables once.

    Next go the variables of the kind that leaves the smallest table, divided by how many variables are of that kind.
    Others are not looked for if the first takes far more than `most_operations`, nor longer than is worthwhile.
    """
    chance = random.Random(0)
    best = _Lockstep(problem, 0.0, chance).order(most_operations * (GAIN if tries > 1 else 1))
    if best.complete:
        for number in range(1, tries):
            if number * len(problem.sizes) * TRY_OPERATIONS > TRYING_PART * best.operations:
                break
            found = _Lockstep(problem, SPREADS[number % len(SPREADS)], chance).order(best.operations)
            if found.complete and found.operations < best.operations:
                best = found
    return best


class _Lockstep:
    """A dry run of an elimination: which variables there are of which kind."""

    def __init__(self, problem: Problem, spread: float, chance: random.Random) -> None:
        self._sizes = problem.sizes
        self._terms: list[Term] = list(problem.terms)
        self._live = [set(positions) for positions in by_variable(self._terms, len(self._sizes))]
        self._spread, self._chance = spread, chance
        self._found: dict[int, tuple[Kind, Scope]] = {}
        self._members: dict[Kind, set[int]] = defaultdict(set)
        self._left_by: dict[Kind, float] = {}
        self._made: dict[Kind, int] = {}
        self._heap: list[tuple[float, int, Kind]] = []
        for kind in {self._enter(v) for v in range(len(self._sizes))}:
            self._push(kind)

    def order(self, most_operations: float) -> Order:
        """Return the order, as far as that many operations go."""
        order: list[int] = []
        width, largest, entries, operations = 0, 1.0, 0.0, 0.0
        while self._heap and operations <= most_operations:
            score, _, kind = heapq.heappop(self._heap)
            if not self._members[kind] or score != self._score(kind):
                continue
            changed = set()
            while self._members[kind]:
                v = min(self._members[kind])
                if kind not in self._made:
                    self._made[kind] = ~len(self._made)
                    left = prod(kind[1][1:], start=1.0)
                    width, largest = max(width, len(kind[1]) - 1), max(largest, left)
                    entries += left
                    operations += left * kind[1][0]
                order.append(v)
                changed |= self._eliminate(v)
            for other in changed:
                self._push(other)
        return Order(tuple(order), width, largest, entries, operations, len(order) == len(self._sizes))

    def _eliminate(self, v: int) -> set[Kind]:
        """Take a variable out; return the kinds that its neighbours were and are."""
        kind, neighbours = self._leave(v)
        for position in list(self._live[v]):
            for u in self._terms[position][0]:
                self._live[u].discard(position)
        if neighbours:
            for u in neighbours:
                self._live[u].add(len(self._terms))
            self._terms.append((neighbours, self._made[kind]))
        changed = set()
        for u in neighbours:
            changed |= {self._leave(u)[0], self._enter(u)}
        return changed

    def _enter(self, v: int) -> Kind:
        neighbours, shape = around(v, [self._terms[position] for position in sorted(self._live[v])])
        kind = shape, (self._sizes[v], *(self._sizes[u] for u in neighbours))
        self._found[v] = kind, neighbours
        self._members[kind].add(v)
        if kind not in self._left_by:
            self._left_by[kind] = prod(kind[1][1:], start=1.0) * self._chance.lognormvariate(0, self._spread)
        return kind

    def _leave(self, v: int) -> tuple[Kind, Scope]:
        kind, neighbours = self._found.pop(v)
        self._members[kind].discard(v)
        return kind, neighbours

    def _score(self, kind: Kind) -> float:
        return self._left_by[kind] / len(self._members[kind])

    def _push(self, kind: Kind) -> None:
        if self._members[kind]:
            heapq.heappush(self._heap, (self._score(kind), min(self._members[kind]), kind))
