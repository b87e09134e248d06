"""What operators cost, and what they would cost with another strategy while all tensors stay where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from planner.explanations.accounts import by_node, flows, flows_of
from planner.graph.ir import Node
from planner.layout import PARTIAL, TERMS, Signature, Strategy
from planner.plans.plan import Plan
from planner.plans.traffic import NodeTraffic, Traffic
from planner.search.costs.domains import choices_at_step

MOST_STRATEGIES = 512
"""Up to so many strategies all are tried; of more, those that differ in one step and those that are one throughout."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that have one strategy because their results accumulate into one sum; mostly a single node.

    `outputs` are the tensors that they store.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Costly:
    """Alike units, `count` of them: same operator, shapes, strategy, layouts and bytes."""

    unit: Unit
    count: int
    strategy: Strategy

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return self.count * self.unit.nbytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """Another strategy of a unit: how many bytes more the whole plan would move with it."""

    strategy: Strategy
    extra_bytes: int


def costliest(plan: Plan, count: int) -> tuple[Costly, ...]:
    """Return the alike operators that cost most together."""
    alike: dict[object, list[Unit]] = {}
    found = plan.traffic().signatures
    for unit in _units(plan):
        node = unit.nodes[0]
        layouts = tuple(plan.layouts[name] for name in (*node.inputs, *node.outputs))
        key = (id(found[node.name]), len(unit.nodes), plan.strategies[node.name], layouts, unit.nbytes)
        alike.setdefault(key, []).append(unit)
    groups = [Costly(units[0], len(units), plan.strategies[units[0].nodes[0].name]) for units in alike.values()]
    return tuple(sorted((one for one in groups if one.nbytes), key=lambda one: -one.nbytes)[:count])


def _units(plan: Plan) -> Iterator[Unit]:
    """Yield the plan's nodes, those that accumulate into one sum together."""
    costs = by_node(flows(plan))
    sums: dict[str, list[NodeTraffic]] = {}
    for work in plan.traffic().work:
        sums.setdefault(work.accumulates or work.node.name, []).append(work)
    for parts in sums.values():
        outputs = tuple(write.tensor for work in parts for write in work.writes)
        yield Unit(tuple(work.node for work in parts), outputs, sum(costs[work.node.name] for work in parts))


def rejected(plan: Plan, unit: Unit) -> tuple[Rejected, ...]:
    """Return the other strategies of a unit, best first, with what they would cost the plan."""
    around = _neighbourhood(plan, unit)

    def cost(strategy: Strategy) -> int:
        changed = replace(plan, strategies={**plan.strategies, **{node.name: strategy for node in unit.nodes}})
        return sum(movement.nbytes for movement in flows_of(Traffic(changed, around, like=plan.traffic())))

    strategy = plan.strategies[unit.nodes[0].name]
    now, others = cost(strategy), [other for other in candidates(plan, unit) if other != strategy]
    return tuple(sorted((Rejected(other, cost(other) - now) for other in others), key=lambda one: one.extra_bytes))


def _neighbourhood(plan: Plan, unit: Unit) -> tuple[Node, ...]:
    """Return the nodes whose bytes can depend on the unit's strategy: those that share its fetches, and its sums."""
    nodes, names = plan.graph.nodes, _with_sums(plan, {node.name for node in unit.nodes})
    forwards = {node.forward for node in unit.nodes} - {None}
    names = _with_sums(plan, names | {node.name for node in nodes if node.forward in forwards})
    return tuple(node for node in nodes if node.name in names)


def _with_sums(plan: Plan, names: set[str]) -> set[str]:
    """Add every sum of theirs, with all of its summands."""
    sums = ({total, *summands} for total, summands in plan.traffic().groups.items())
    return names.union(*(one for one in sums if not names.isdisjoint(one)))


def candidates(plan: Plan, unit: Unit) -> list[Strategy]:
    """Return strategies that the unit could have, its own among them."""
    node = unit.nodes[0]
    signature, own = plan.traffic().signatures[node.name], plan.strategies[node.name]
    options = [_choices(plan, unit, signature, step) for step in range(len(plan.ways))]
    if math.prod(map(len, options)) <= MOST_STRATEGIES:
        return list(product(*options))
    one_step = [(*own[:step], choice, *own[step + 1 :]) for step, found in enumerate(options) for choice in found]
    shared = set(options[0]).intersection(*options)
    return list(dict.fromkeys([*one_step, *((choice,) * len(options) for choice in options[0] if choice in shared)]))


def _choices(plan: Plan, unit: Unit, signature: Signature, step: int) -> tuple[str, ...]:
    """Return what the unit could choose at a step; where partial tensors meet it, what it has chosen."""
    own = plan.strategies[unit.nodes[0].name][step]
    if own == TERMS or any(plan.layouts[name][step] == PARTIAL for name in unit.outputs):
        return (own,)
    found = choices_at_step(signature, plan.ways, step, replicate=True)
    return found if own in found else (*found, own)
