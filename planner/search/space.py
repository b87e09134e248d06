"""Input and output of searchers: the space of plans, and an outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from planner.errors import PlanError
from planner.layout import PARTIAL, TERMS, Layout, Strategy, Ways
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.plans.records import SearchRecord
from planner.search.coarse import CoarseGraph, TensorVariable
from planner.search.costs.domains import (
    Domain,
    choice_carrying_operands,
    choices_at_step,
    layouts_domain,
    operands_carried_by_choice,
    placements_at_step,
    strategies_domain,
)
from planner.search.costs.tables import Tables
from planner.search.objectives import BYTES, Objective
from planner.search.partial_sums import INFEASIBLE, Feasible, PartialSums, penalty_above_cost
from planner.search.pins import NO_RESTRICTIONS, Pinned, Restrictions
from planner.search.solver import Solution
from planner.search.solver.problem import Problem, problem_of_graph

State = tuple[Any, ...]
"""A layout or a strategy, over all steps or the first few."""


class Space(Struct, frozen=True):
    """All plans of one coarse graph, ways and placement set, and the objective to minimize.

    `tables` caches costs between searches. `partial_sums` says which results may be partial, if any. A strategy of the
    search names the operands whose terms it carries, such as `+{0,1}`; a plan writes `+`. `parallel` is the requested
    named parallelism. `restrictions` are the options that pins allow.
    """

    coarse: CoarseGraph
    ways: Ways
    replicate: bool
    tables: Tables = field(default_factory=Tables)
    objective: Objective = BYTES
    partial_sums: PartialSums | None = None
    parallel: Parallel | None = None
    restrictions: Restrictions = NO_RESTRICTIONS

    def with_pins(self, pinned: Pinned | None) -> Space:
        """Return the space of the plans that satisfy the pins; raise PinError if a variable is left without options."""
        if pinned is None:
            return self
        coarse = self.coarse
        kept = pinned.restrictions(coarse.variables, coarse.variable_of, self.options_at_every_step)
        return replace(self, restrictions=kept)

    def without_optional_partial_sums(self) -> Space | None:
        """Return the space in which results are partial only if that is allowed under any placements.

        Return None if this space already is, or if pins require more.
        """
        fewer = None if self.partial_sums is None else self.partial_sums.fewer
        if fewer is None:
            return None
        plain = replace(self, partial_sums=fewer)
        return plain if all(all(plain.options_at_every_step(v)) for v in self.restrictions.of_variable) else None

    def feasible_objective(self, cost: int | None = None) -> Objective:
        """Return the objective under which every infeasible choice costs more than a plan of cost `cost`."""
        if self.partial_sums is None:
            return self.objective
        return Feasible(self.objective, INFEASIBLE if cost is None else penalty_above_cost(self.coarse, cost))

    def candidates(self, v: int) -> tuple[State, ...]:
        """Return every state of a variable, over all steps."""
        return tuple(product(*self.options_at_every_step(v)))

    def options_at_every_step(self, v: int) -> list[tuple[Any, ...]]:
        """Return the options of a variable's state at every step: [step]."""
        return [self.options(v, step) for step in range(len(self.ways))]

    def options(self, v: int, step: int) -> tuple[Any, ...]:
        """Return the options of a variable's state at a step."""
        return self.restrictions.kept(v, step, self._options_without_pins(v, step))

    def _options_without_pins(self, v: int, step: int) -> tuple[Any, ...]:
        variable = self.coarse.variables[v]
        if isinstance(variable, TensorVariable):
            placements = placements_at_step(variable.shape, self.ways, step, replicate=self.replicate)
            partial = self.partial_sums is not None and v in self.partial_sums.partial[step]
            return (*placements, PARTIAL) if partial else placements
        anywhere = self.objective.allows_everywhere or self.parallel is not None
        everywhere = anywhere or (self.replicate and variable.is_of_replicas)
        choices = choices_at_step(variable.signature, self.ways, step, replicate=self.replicate, everywhere=everywhere)
        sets = () if self.partial_sums is None else self.partial_sums.carried[step].get(v, ())
        return (*choices, *map(choice_carrying_operands, sets))

    def domain(self, v: int, states: Sequence[State], steps: int | None = None) -> Domain:
        """Return the domain of given states of a variable, over the first `steps` steps, in order of preference."""
        variable, ways = self.coarse.variables[v], self.ways if steps is None else self.ways.prefix(steps)
        if isinstance(variable, TensorVariable):
            return layouts_domain(variable.shape, ways, tuple(states))
        return strategies_domain(variable.signature, ways, tuple(states))

    def check_choice(self, outcome: object) -> None:
        """Raise PlanError if this is no Outcome, or chooses no state of the space for some variable."""
        if not isinstance(outcome, Outcome):
            raise PlanError(f"expected an Outcome, found {outcome!r}")
        choice: object = outcome.choice
        variables, expected = self.coarse.variables, "expected a state of the space for each variable, found"
        if not isinstance(choice, tuple) or len(choice) != len(variables):
            raise PlanError(f"{expected} {len(choice) if isinstance(choice, tuple) else choice!r} for {len(variables)}")
        for v, state in enumerate(choice):
            options = self.options_at_every_step(v)
            is_state = isinstance(state, tuple) and len(state) == len(options)
            if not is_state or any(option not in allowed for option, allowed in zip(state, options, strict=True)):
                raise PlanError(f"{expected} {state!r} for {variables[v].members[0]}")

    def cost(self, choice: Sequence[State]) -> int:
        """Return the cost of one state per variable, in the objective's unit; at least INFEASIBLE if it is no plan."""
        return self.problem([(state,) for state in choice]).constant

    def problem(self, candidates: Sequence[Sequence[State]]) -> Problem:
        """Return the problem of choosing one of the candidates of every variable."""
        return self.problem_of_domains([self.domain(v, states) for v, states in enumerate(candidates)])

    def problem_of_domains(self, domains: Sequence[Domain], cost: int | None = None) -> Problem:
        """Return the problem of choosing one state of every domain; `cost` as for `feasible_objective`."""
        return problem_of_graph(self.coarse, domains, self.tables, self.feasible_objective(cost))

    def layouts(self, choice: Sequence[State]) -> dict[str, Layout]:
        """Return every tensor's layout, by name."""
        of = self.coarse.variable_of
        return {name: choice[of["tensor", name]] for name in self.coarse.graph.tensors}

    def strategies(self, choice: Sequence[State]) -> dict[str, Strategy]:
        """Return every node's strategy, by name."""
        of = self.coarse.variable_of
        plain = [
            tuple(TERMS if operands_carried_by_choice(option) else option for option in map(str, state))
            for state in choice
        ]
        return {node.name: plain[of["node", node.name]] for node in self.coarse.graph.nodes}


class Outcome(Struct, frozen=True):
    """A searcher's outcome: a state per variable, its cost in the objective's unit, and details for the report.

    `lower_bound` is a lower bound on the cost of every plan of the searched space, if the searcher knows one.
    """

    choice: tuple[State, ...]
    cost: int
    lower_bound: int | None
    details: Mapping[str, int | float | str] = field(default_factory=dict)

    @classmethod
    def of_solution(cls, domains: Sequence[Domain], solution: Solution) -> Outcome:
        """Return the outcome of a solution in numbers of states; costs are not negative, so 0 is always a bound."""
        choice = tuple(domain.states[state] for domain, state in zip(domains, solution.states, strict=True))
        details = {"width": solution.order.width, "largest_table_bytes": solution.order.largest_bytes}
        return cls(choice, solution.value, max(0, solution.bound), details)


class Candidate(Struct, frozen=True):
    """A searcher's outcome with its space; `search` repeats the search in another space of the coarse graph."""

    searcher: str
    space: Space
    outcome: Outcome
    search: Callable[[Space], Outcome]

    @property
    def cost(self) -> int:
        """Cost of the plan in the objective's unit, as returned by the searcher."""
        return self.outcome.cost

    @property
    def is_proved(self) -> bool:
        """True if no plan of its space costs less."""
        return self.outcome.lower_bound == self.cost

    def bytes_moved(self) -> int:
        """Return the bytes that the plan moves in one iteration."""
        return (
            self.cost
            if self.space.objective is BYTES
            else replace(self.space, objective=BYTES).cost(self.outcome.choice)
        )

    def plan(self, seed: int, record: SearchRecord | None = None) -> Plan:
        """Return the plan."""
        space, choice = self.space, self.outcome.choice
        layouts, strategies = space.layouts(choice), space.strategies(choice)
        return Plan(space.coarse.graph, seed, space.ways, layouts, strategies, record or SearchRecord())
