"""The state of a search, which every stage takes and returns with a better incumbent or bound."""

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

    @property
    def open_state_count(self) -> int:
        """Number of open states of all variables together."""
        return sum(map(len, self.open_states))

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
        if self.open_state_count == sum(model.sizes):
            return self.open_states
        together: dict[int, set[int]] = defaultdict(set)
        for colour, states in zip(model.colours_of_variables, self.open_states, strict=True):
            together[colour].update(states)
        ordered = {colour: tuple(sorted(states)) for colour, states in together.items()}
        return tuple(ordered[colour] for colour in model.colours_of_variables)
