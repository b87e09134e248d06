"""What searchers take and return: the space of plans, an outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

from planner.layout import PARTIAL, TERMS, Layout, Placement, Strategy
from planner.plans.plan import Plan
from planner.plans.search_record import SearchRecord
from planner.search.carriage import INFEASIBLE, Carriage, Feasible, penalty_above_cost
from planner.search.coarse.coarsen import CoarseGraph, TensorVariable
from planner.search.costs.domains import (
    Domain,
    carrying_choice,
    choices_at,
    layouts_of,
    operands_carried,
    placements_at,
    strategies_of,
)
from planner.search.costs.tables import Tables
from planner.search.objectives.objective import BYTES, Objective
from planner.search.solver.limits import Limits
from planner.search.solver.minimise import Solution
from planner.search.solver.problem import Problem, problem_of_graph

SMALL_STATES = 2000
"""Up to so many states of all variables together a graph is small: all alternatives together take about 0.1 s."""

State = tuple[Any, ...]
"""A layout or a strategy, over all or the first few steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All plans of one coarse graph, ways and placement set, and what they are to have least of.

    `tables` remembers costs between searches. `carriage` says what may be partial, where anything may. A strategy of
    the search names the operands whose terms it carries, such as `+{0,1}`; that of a plan is `+`.
    """

    coarse: CoarseGraph
    ways: tuple[int, ...]
    replicate: bool
    tables: Tables = field(default_factory=Tables)
    objective: Objective = BYTES
    carriage: Carriage | None = None

    def without_partial(self) -> Space:
        """Return the same space in which nothing is partial."""
        return replace(self, carriage=None)

    def feasible_objective(self, cost: int | None = None) -> Objective:
        """Return the objective under which whatever does not go together costs more than a plan of this cost."""
        if self.carriage is None:
            return self.objective
        return Feasible(self.objective, INFEASIBLE if cost is None else penalty_above_cost(self.coarse, cost))

    def candidates(self, v: int) -> tuple[State, ...]:
        """Return every state of a variable, over all steps."""
        return tuple(product(*self.options_by_step(v)))

    @property
    def is_small(self) -> bool:
        """Whether all variables together have few states, nothing partial."""
        whole = self.without_partial()
        states = (prod(map(len, whole.options_by_step(v))) for v in range(len(self.coarse.variables)))
        return sum(states) <= SMALL_STATES

    def options_by_step(self, v: int) -> list[tuple[Placement, ...] | tuple[str, ...]]:
        """Return what a variable's state may have at every step."""
        return [self.options(v, step) for step in range(len(self.ways))]

    def options(self, v: int, step: int) -> tuple[Placement, ...] | tuple[str, ...]:
        """Return what a variable's state may have at a step."""
        variable = self.coarse.variables[v]
        if isinstance(variable, TensorVariable):
            placements = placements_at(variable.shape, self.ways, step, replicate=self.replicate)
            partial = self.carriage is not None and v in self.carriage.partial[step]
            return (*placements, PARTIAL) if partial else placements
        choices = choices_at(
            variable.signature, self.ways, step, replicate=self.replicate, everywhere=self.objective.allows_everywhere
        )
        sets = () if self.carriage is None else self.carriage.carried[step].get(v, ())
        return (*choices, *map(carrying_choice, sets))

    def domain(self, v: int, states: Sequence[State], steps: int | None = None) -> Domain:
        """Return a domain of given states of a variable, over the first `steps` steps, in order of preference."""
        variable, ways = self.coarse.variables[v], self.ways[:steps]
        if isinstance(variable, TensorVariable):
            return layouts_of(variable.shape, ways, tuple(states))
        return strategies_of(variable.signature, ways, tuple(states))

    def variable_without_state(self, choice: Sequence[State]) -> str | None:
        """Return the first variable that a choice gives no state of its own, and what instead; None if none is."""
        if len(choice) != len(self.coarse.variables):
            return f"{len(choice)} states for {len(self.coarse.variables)} variables"
        for v, state in enumerate(choice):
            options = self.options_by_step(v)
            if len(state) != len(options) or any(one not in of for one, of in zip(state, options, strict=True)):
                return f"{state!r} for {self.coarse.variables[v].members[0]}"
        return None

    def cost(self, choice: Sequence[State]) -> int:
        """Return the cost of one state per variable, in the objective's unit; INFEASIBLE or more if it is no plan."""
        return self.problem([(state,) for state in choice]).constant

    def problem(self, candidates: Sequence[Sequence[State]]) -> Problem:
        """Return the problem of choosing one of the candidates of every variable."""
        domains = [self.domain(v, states) for v, states in enumerate(candidates)]
        return problem_of_graph(self.coarse, domains, self.tables, self.feasible_objective())

    def layouts(self, choice: Sequence[State]) -> dict[str, Layout]:
        """Return every tensor's layout."""
        of = self.coarse.variable_of
        return {name: choice[of["tensor", name]] for name in self.coarse.graph.tensors}

    def strategies(self, choice: Sequence[State]) -> dict[str, Strategy]:
        """Return every node's strategy."""
        of = self.coarse.variable_of
        plain = [tuple(TERMS if operands_carried(one) else one for one in map(str, state)) for state in choice]
        return {node.name: plain[of["node", node.name]] for node in self.coarse.graph.nodes}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a searcher found: a state per variable, its cost in the objective's unit, and details for people.

    `lower_bound` is a cost below which no plan of the searched space lies, where the searcher knows one.
    """

    choice: tuple[State, ...]
    cost: int
    lower_bound: int | None
    details: Mapping[str, int | float | str] = field(default_factory=dict)

    @classmethod
    def of(cls, domains: Sequence[Domain], found: Solution) -> Outcome:
        """Return what a solution in numbers of states says; costs are not negative, so that 0 is always a bound."""
        choice = tuple(domain.states[state] for domain, state in zip(domains, found.states, strict=True))
        details = {"width": found.order.width, "largest_table_bytes": found.order.largest_bytes}
        return cls(choice, found.value, max(0, found.bound), details)


@dataclass(frozen=True, slots=True)
class Found:
    """What a searcher found in a space; `search` is the same search of another space of the same coarse graph."""

    space: Space
    outcome: Outcome
    search: Callable[[Space], Outcome]

    def plan(self, seed: int, record: SearchRecord | None = None) -> Plan:
        """Return the plan that was found."""
        space, choice = self.space, self.outcome.choice
        layouts, strategies = space.layouts(choice), space.strategies(choice)
        return Plan(space.coarse.graph, seed, space.ways, layouts, strategies, record or SearchRecord())


Searcher = Callable[[Space, Limits], Outcome]
