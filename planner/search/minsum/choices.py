"""The best choice found so far, and how better ones are looked for: exactly, over some states of every variable."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.search.costs.tables import Table
from planner.search.minsum.elimination import Order, cutset, greedy_order, solve
from planner.search.minsum.limits import Limits
from planner.search.minsum.lockstep import lockstep_order
from planner.search.minsum.model import Kept, Model

FEW_OPERATIONS = 2e8
FEW_STATES = (48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)

NEARBY = ((40, 2e6),)
NEIGHBOURHOODS = ((24, 1e7), (32, 1e7), (40, 1e7))
"""A choice is improved by solving for all but a few variables: states of each, and work on each; a little by the
first, further by the others."""

CLIMBED_OPERATIONS = 4e9
ROUNDS = 8
IMPROVED = 1e-4
"""Neighbourhoods of a size are left after so many, or when one gains less than that part."""

DEARER = 4.0
"""By how much more reluctantly a variable keeps its state that kept it before."""

PAYING, MOST_PAYING = 3.0, 20
"""By how much more reluctantly those variables keep theirs around which a choice pays most; others in proportion."""


Pays = Callable[[Sequence[int]], NDArray[np.float64]]
"""Returns what a choice pays beyond a bound, by the variables around which it does."""


class Left:
    """What is left of every variable: `kept`, the states that a better choice may have, and a bound with each."""

    def __init__(self, sizes: Sequence[int], colours: Sequence[int]) -> None:
        """Variables of one colour look alike."""
        self.kept: list[tuple[int, ...]] = [tuple(range(size)) for size in sizes]
        self._bounds: dict[int, Table] = {}
        self.colours = colours
        self._members: dict[int, list[int]] = defaultdict(list)
        for v, colour in enumerate(colours):
            self._members[colour].append(v)

    @property
    def states(self) -> int:
        """How many states are left of all variables together."""
        return sum(map(len, self.kept))

    def learn(self, v: int, states: Sequence[int], bounds: Table) -> None:
        """Take lower bounds on the cost of every choice with each of some states, all kept ones among them."""
        at = {state: i for i, state in enumerate(states)}
        self._bounds[v] = bounds[[at[state] for state in self.kept[v]]]

    def prune(self, variables: Iterable[int], most: int) -> dict[int, tuple[int, ...]] | None:
        """Drop states whose bound is `most` or more; return what remains of which variables, by position.

        None if nothing remains of one.
        """
        alive = {v: tuple(np.flatnonzero(self._bounds[v] < most).tolist()) for v in variables}
        if not all(alive.values()):
            return None
        alive = {v: states for v, states in alive.items() if len(states) < len(self.kept[v])}
        for v, states in alive.items():
            self.kept[v] = tuple(self.kept[v][state] for state in states)
            self._bounds[v] = self._bounds[v][list(states)]
        return alive

    def alike(self) -> list[tuple[int, ...]]:
        """Return what is kept of every variable or of any other of its colour."""
        together = {
            colour: tuple(sorted({state for v in members for state in self.kept[v]}))
            for colour, members in self._members.items()
        }
        return [together[colour] for colour in self.colours]

    def promising(self, count: int, known: Sequence[int]) -> list[tuple[int, ...]]:
        """Return so many states of every variable, those of the least bounds, and those of a known choice.

        Variables of one colour get the same states, of all of them together, so that what looks alike is worked out
        once.
        """
        found: dict[int, tuple[int, ...]] = {}
        for colour, members in self._members.items():
            best: dict[int, int] = {}
            for v in members:
                bounds = self._bounds.get(v)
                costs = [0] * len(self.kept[v]) if bounds is None else bounds.tolist()
                for state, cost in zip(self.kept[v], costs, strict=True):
                    best[state] = min(cost, best.get(state, cost))
            ranked = sorted(best, key=lambda state: (best[state], state))
            found[colour] = tuple(sorted({*ranked[:count], *(known[v] for v in members)}))
        return [found[colour] for colour in self.colours]


class Choices:
    """The best choice of a model found so far and its cost; to begin with, the first state of every variable.

    The search for better ones ends with the limits' seconds.
    """

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._deadline = time.process_time() + limits.seconds
        self._starts: list[tuple[int, ...]] = []
        self._few = 0
        self.best: tuple[int, ...] = (0,) * len(model.sizes)
        self.cost = model.value(self.best)

    @property
    def late(self) -> bool:
        """Whether time is out."""
        return time.process_time() > self._deadline

    def pause(self, seconds: float) -> None:
        """Let the search go on for so much longer: others took the time."""
        self._deadline += seconds

    def start(self, states: Sequence[int]) -> None:
        """Offer a choice that is worth improving even if a better one is known."""
        self._starts.append(tuple(states))
        self.offer(states)

    def offer(self, states: Sequence[int]) -> None:
        """Take a choice if it is better than the best so far."""
        cost = self._model.value(states)
        if cost < self.cost:
            self.best, self.cost = tuple(states), cost

    def order_over(self, kept: Kept, most_operations: float) -> Order:
        """Return the order in which to solve for some states of every variable, as far as that much work goes."""
        sizes = [len(states) for states in kept]
        scopes = [tuple(v for v in scope if sizes[v] > 1) for scope in self._model.scopes]
        return greedy_order(sizes, scopes, most_operations, most_operations)

    def fits(self, order: Order, operations: float) -> bool:
        """Whether following an order stays within so much work, and within the limits."""
        return order.fits(self._limits.memory_bytes, min(operations, self._limits.operations))

    def solve_over(self, kept: Kept) -> tuple[int, ...]:
        """Offer and return the exact optimum over some states of every variable."""
        return self._taken(kept, solve(self._model.exact(kept)))

    def _taken(self, kept: Kept, states: Sequence[int]) -> tuple[int, ...]:
        found = tuple(of[state] for of, state in zip(kept, states, strict=True))
        self.offer(found)
        return found

    def try_few_states(self, left: Left) -> None:
        """Offer the exact optimum over the most promising states of the variables, as many as are quickly tried."""
        for at in range(max(0, self._few - 1), len(FEW_STATES)):
            kept = left.promising(FEW_STATES[at], self.best)
            if self.fits(self.order_over(kept, FEW_OPERATIONS), FEW_OPERATIONS):
                self._few = at
                self.solve_over(kept)
                return

    def improve(self, left: Left) -> None:
        """Climb a little from the best."""
        self._climb(left, self.best, NEARBY)

    def improve_all(self, left: Left, pays: Pays | None = None) -> None:
        """Climb from the best, then from where the search started; `pays` says where a choice could be better."""
        for states in dict.fromkeys((self.best, *reversed(self._starts))):
            self._climb(left, states, NEIGHBOURHOODS, pays)

    def _climb(
        self,
        left: Left,
        states: tuple[int, ...],
        sizes: Sequence[tuple[int, float]],
        pays: Pays | None = None,
    ) -> None:
        """Improve a choice by the optimum over all but a few variables, which keep their states; others each time."""
        cost, dear = self._model.value(states), [1.0] * len(states)
        for count, operations in sizes:
            for _ in range(ROUNDS):
                if self.late:
                    return
                kept = left.promising(count, states)
                reluctance = dear if pays is None else (_reluctance(pays(states)) * dear).tolist()
                for v in cutset([len(of) for of in kept], self._model.scopes, operations, reluctance):
                    dear[v] *= DEARER
                    kept[v] = (states[v],)
                problem = self._model.exact(kept)
                order = lockstep_order(problem, CLIMBED_OPERATIONS, tries=1)
                if not self.fits(order, CLIMBED_OPERATIONS):
                    break
                states = self._taken(kept, solve(problem, order))
                before, cost = cost, self._model.value(states)
                if before - cost < IMPROVED * before:
                    break


def _reluctance(pays: NDArray[np.float64]) -> NDArray[np.float64]:
    much = np.sort(pays)[-MOST_PAYING:][0]
    return np.asarray(1 + PAYING * np.minimum(1, pays / max(much, 1)))
