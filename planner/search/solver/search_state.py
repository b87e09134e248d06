"""The state of a search: a value that every stage takes, and returns with a better incumbent or bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from planner.search.costs.tables import Table
from planner.search.solver.elimination import NOTHING_ELIMINATED, Order
from planner.search.solver.limits import NO_BOUND
from planner.search.solver.model import Model, OpenStates


class SearchState(Struct, frozen=True, eq=False):
    """The incumbent, which is the best choice so far, its cost, a lower bound, and what a better choice may still have.

    `open_states` are the states of every variable that a better choice may have, `bounds` a lower bound on the cost of
    every choice with each of them: where nothing is known, NO_BOUND. `order` is the elimination that proved the
    incumbent, if one did.
    """

    incumbent: tuple[int, ...]
    cost: int
    lower: int
    open_states: OpenStates
    bounds: tuple[Table, ...]
    order: Order = NOTHING_ELIMINATED

    @classmethod
    def of_choice(cls, model: Model, choice: Sequence[int]) -> SearchState:
        """Return the state in which one choice is all that is known."""
        open_states = tuple(tuple(range(size)) for size in model.sizes)
        bounds = tuple(np.full(size, NO_BOUND) for size in model.sizes)
        return cls(tuple(choice), model.value(choice), NO_BOUND, open_states, bounds)

    @property
    def is_proved(self) -> bool:
        """Whether no choice costs less than the best known."""
        return self.lower >= self.cost

    @property
    def gap(self) -> float:
        """The optimality gap: the part of its cost by which the best choice may be too dear."""
        return (self.cost - self.lower) / max(1, abs(self.cost))

    def with_choice_offered(self, model: Model, choice: Sequence[int]) -> SearchState:
        """Return this with a choice taken if it is better; states that it rules out go."""
        cost = model.value(choice)
        return (
            replace(self, incumbent=tuple(choice), cost=cost)._without_ruled_out_states() if cost < self.cost else self
        )

    @property
    def open_state_count(self) -> int:
        """How many states are open, of all variables together."""
        return sum(map(len, self.open_states))

    def with_lower_bound(self, lower: int) -> SearchState:
        """Return this with a lower bound on every cost."""
        return replace(self, lower=max(self.lower, lower))

    def with_open_states_solved(self, model: Model, choice: Sequence[int], order: Order) -> SearchState:
        """Return this with the best of the open choices, which following an order found: no other is better.

        Of equals it stands, the first in order of preference, so that a plan depends on no start.
        """
        cost = model.value(choice)
        incumbent = tuple(choice) if cost <= self.cost else self.incumbent
        least = min(cost, self.cost)
        return replace(self, incumbent=incumbent, cost=least, lower=max(self.lower, least), order=order)

    def with_state_bounds(self, open_states: Sequence[Sequence[int]], bounds: Sequence[Table]) -> SearchState:
        """Return this with lower bounds of states, all open ones among them; states that these rule out go."""
        merged = []
        for states, before, of, new in zip(self.open_states, self.bounds, open_states, bounds, strict=True):
            at = {state: i for i, state in enumerate(of)}
            merged.append(np.maximum(before, new[[at[state] for state in states]]))
        return replace(self, bounds=tuple(merged))._without_ruled_out_states()

    def _without_ruled_out_states(self) -> SearchState:
        """Return this without the states whose bounds say that no better choice has them."""
        alive = [np.flatnonzero(bounds < self.cost) for bounds in self.bounds]
        if not all(map(len, alive)):
            return self.with_lower_bound(self.cost)
        open_states = tuple(tuple(of[at] for at in mine) for of, mine in zip(self.open_states, alive, strict=True))
        return replace(
            self, open_states=open_states, bounds=tuple(b[mine] for b, mine in zip(self.bounds, alive, strict=True))
        )

    def open_states_by_colour(self, model: Model) -> OpenStates:
        """Return what is open of every variable or of any other of its colour."""
        if self.open_state_count == sum(model.sizes):
            return self.open_states
        together: dict[int, set[int]] = defaultdict(set)
        for colour, states in zip(model.colours_of_variables, self.open_states, strict=True):
            together[colour].update(states)
        ordered = {colour: tuple(sorted(states)) for colour, states in together.items()}
        return tuple(ordered[colour] for colour in model.colours_of_variables)
