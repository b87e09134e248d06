"""What operators cost, and what they would cost with another strategy while all tensors stay where they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

from planner.explanations.accounts import NODE, bytes_by, flows, flows_of
from planner.explanations.words import Words
from planner.graph.ir import Node
from planner.layout import PARTIAL, TERMS, Signature, Strategy, group_of
from planner.plans.plan import Plan
from planner.plans.traffic import Traffic
from planner.search.costs.domains import choices_at_step

MOST_STRATEGIES = 512
"""Up to so many strategies all are tried; of more, those that differ in one step and those that are one throughout."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Another strategy of a unit, also in words: how many bytes more the whole plan would move with it."""

    strategy: Strategy
    split: str
    extra_bytes: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A node. `count` units are alike: same operator, shapes, strategy, layouts and bytes, `bytes_each`.

    `rejected` are other strategies of one, best first.
    """

    node: Node
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
    signatures, costs = plan.traffic().signatures, bytes_by(NODE, flows(plan))
    for node in plan.graph.nodes:
        unit = Unit(node, plan.strategies[node.name], costs[node.name])
        layouts = tuple(plan.layouts[name] for name in (*node.inputs, *node.outputs))
        alike.setdefault((id(signatures[node.name]), unit.strategy, layouts, unit.bytes_each), []).append(unit)
    groups = [replace(units[0], count=len(units)) for units in alike.values() if units[0].bytes_each]
    return tuple(sorted(groups, key=lambda unit: -unit.nbytes)[:count])


def rejected(plan: Plan, unit: Unit, words: Words) -> tuple[Rejected, ...]:
    """Return the other strategies of a unit, best first, with what they would cost the plan."""
    around = _neighbourhood(plan, unit)

    def cost(strategy: Strategy) -> int:
        changed = replace(plan, strategies={**plan.strategies, unit.node.name: strategy})
        return sum(movement.nbytes for movement in flows_of(Traffic(changed, around, like=plan.traffic())))

    now, others = cost(unit.strategy), [other for other in candidates(plan, unit) if other != unit.strategy]
    rows = (Rejected(other, words.of_strategy(unit.node, other, plan.ways), cost(other) - now) for other in others)
    return tuple(sorted(rows, key=lambda other: other.extra_bytes))


def _neighbourhood(plan: Plan, unit: Unit) -> tuple[Node, ...]:
    """Return the nodes whose bytes can depend on the unit's strategy: those that share its fetches."""
    forward, nodes = unit.node.forward, plan.graph.nodes
    return tuple(node for node in nodes if node is unit.node or (forward is not None and node.forward == forward))


def candidates(plan: Plan, unit: Unit) -> list[Strategy]:
    """Return strategies that the unit could have, its own among them."""
    signature, chosen = plan.traffic().signatures[unit.node.name], unit.strategy
    options = [_choices(plan, unit, signature, step) for step in range(len(plan.ways))]
    if math.prod(map(len, options)) <= MOST_STRATEGIES:
        return list(product(*options))
    one_step = [(*chosen[:i], choice, *chosen[i + 1 :]) for i, choices in enumerate(options) for choice in choices]
    shared = set(options[0]).intersection(*options)
    return list(dict.fromkeys([*one_step, *((choice,) * len(options) for choice in options[0] if choice in shared)]))


def _choices(plan: Plan, unit: Unit, signature: Signature, step: int) -> tuple[str, ...]:
    """Return what the unit could choose at a step: in a stage, or where partial tensors meet it, what it has chosen."""
    chosen = unit.strategy[step]
    is_partial = any(plan.layouts[name][step] == PARTIAL for name in unit.node.outputs)
    if chosen == TERMS or is_partial or group_of(chosen) is not None:
        return (chosen,)
    choices = choices_at_step(signature, plan.ways, step, replicate=True)
    return choices if chosen in choices else (*choices, chosen)
