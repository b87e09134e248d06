"""What operators cost, and what they would cost with another strategy while all tensors stay where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from planner.explanations.accounts import NODE, bytes_by, flows, flows_of
from planner.graph.ir import Node
from planner.layout import PARTIAL, TERMS, Signature, Strategy
from planner.plans.plan import Plan
from planner.plans.traffic import NodeTraffic, Traffic
from planner.search.costs.domains import choices_at_step

MOST_STRATEGIES = 512
"""Up to so many strategies all are tried; of more, those that differ in one step and those that are one throughout."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Another strategy of a unit: how many bytes more the whole plan would move with it."""

    strategy: Strategy
    extra_bytes: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that have one strategy because their results accumulate into one sum; mostly a single node.

    `outputs` are the tensors that they store. `count` units are alike: same operator, shapes, strategy, layouts and
    bytes, `bytes_each`. `rejected` are other strategies of one, best first.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    strategy: Strategy
    bytes_each: int
    count: int = 1
    rejected: tuple[Rejected, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all that are alike."""
        return self.count * self.bytes_each


def costliest(plan: Plan, count: int) -> tuple[Unit, ...]:
    """Return the units that cost most, alike ones together."""
    alike: dict[object, list[Unit]] = {}
    signatures = plan.traffic().signatures
    for unit in _units(plan):
        node = unit.nodes[0]
        layouts = tuple(plan.layouts[name] for name in (*node.inputs, *node.outputs))
        key = (id(signatures[node.name]), len(unit.nodes), unit.strategy, layouts, unit.bytes_each)
        alike.setdefault(key, []).append(unit)
    groups = [replace(units[0], count=len(units)) for units in alike.values() if units[0].bytes_each]
    return tuple(sorted(groups, key=lambda unit: -unit.nbytes)[:count])


def _units(plan: Plan) -> Iterator[Unit]:
    """Yield the plan's nodes, those that accumulate into one sum together."""
    costs = bytes_by(NODE, flows(plan))
    sums: dict[str, list[NodeTraffic]] = {}
    for work in plan.traffic().work:
        sums.setdefault(work.accumulates or work.node.name, []).append(work)
    for parts in sums.values():
        nodes = tuple(work.node for work in parts)
        outputs = tuple(write.tensor for work in parts for write in work.writes)
        yield Unit(nodes, outputs, parts[0].strategy, sum(costs[node.name] for node in nodes))


def rejected(plan: Plan, unit: Unit) -> tuple[Rejected, ...]:
    """Return the other strategies of a unit, best first, with what they would cost the plan."""
    around = _neighbourhood(plan, unit)

    def cost(strategy: Strategy) -> int:
        changed = replace(plan, strategies={**plan.strategies, **{node.name: strategy for node in unit.nodes}})
        return sum(movement.nbytes for movement in flows_of(Traffic(changed, around, like=plan.traffic())))

    now, others = cost(unit.strategy), [other for other in candidates(plan, unit) if other != unit.strategy]
    return tuple(sorted((Rejected(other, cost(other) - now) for other in others), key=lambda other: other.extra_bytes))


def _neighbourhood(plan: Plan, unit: Unit) -> tuple[Node, ...]:
    """Return the nodes whose bytes can depend on the unit's strategy: those that share its fetches, and its sums."""
    nodes, names = plan.graph.nodes, _with_sums(plan, {node.name for node in unit.nodes})
    forwards = {node.forward for node in unit.nodes} - {None}
    names = _with_sums(plan, names | {node.name for node in nodes if node.forward in forwards})
    return tuple(node for node in nodes if node.name in names)


def _with_sums(plan: Plan, names: set[str]) -> set[str]:
    """Add every sum of theirs, with all of its summands."""
    sums = ({total, *summands} for total, summands in plan.traffic().groups.items())
    return names.union(*(group for group in sums if not names.isdisjoint(group)))


def candidates(plan: Plan, unit: Unit) -> list[Strategy]:
    """Return strategies that the unit could have, its own among them."""
    signature, chosen = plan.traffic().signatures[unit.nodes[0].name], unit.strategy
    options = [_choices(plan, unit, signature, step) for step in range(len(plan.ways))]
    if math.prod(map(len, options)) <= MOST_STRATEGIES:
        return list(product(*options))
    one_step = [(*chosen[:i], choice, *chosen[i + 1 :]) for i, choices in enumerate(options) for choice in choices]
    shared = set(options[0]).intersection(*options)
    return list(dict.fromkeys([*one_step, *((choice,) * len(options) for choice in options[0] if choice in shared)]))


def _choices(plan: Plan, unit: Unit, signature: Signature, step: int) -> tuple[str, ...]:
    """Return what the unit could choose at a step; where partial tensors meet it, what it has chosen."""
    chosen = unit.strategy[step]
    if chosen == TERMS or any(plan.layouts[name][step] == PARTIAL for name in unit.outputs):
        return (chosen,)
    choices = choices_at_step(signature, plan.ways, step, replicate=True)
    return choices if chosen in choices else (*choices, chosen)
