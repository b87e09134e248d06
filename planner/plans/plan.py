"""A plan: every tensor's layout and every node's strategy, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.graph.ir import Graph, Node
from planner.layout import EVERYWHERE, PARTIAL, TERMS, Layout, Shard, Signature, Strategy, eligible, signatures
from planner.plans.traffic import Traffic
from planner.report.summary import as_text, describe, summary_table
from planner.report.tables import grid

MOST_BYTES = 1 << 60
"""What a plan may move at the very most, so that sums of what is counted stay within 64 bits."""

MOST_WORKERS = 1024
"""How many workers a plan may have: with more, k x k matrices and tables of who holds what outgrow a computer."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a training graph is split over `workers` workers in len(ways) steps.

    `layouts` gives, per tensor, one placement per step; `strategies`, per node, one choice per step: an index
    variable of its operator, `*` or `+`. `search` says how the plan was found, for people; nothing depends on it.
    """

    graph: Graph
    seed: int
    ways: tuple[int, ...]
    layouts: Mapping[str, Layout]
    strategies: Mapping[str, Strategy]
    search: Mapping[str, Any] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """The number of workers, k."""
        return math.prod(self.ways)

    @property
    def bytes(self) -> NDArray[np.int64]:
        """The k x k matrix of bytes that go from worker (row) to worker (column) in one iteration."""
        return _bytes(self)

    @property
    def total_bytes(self) -> int:
        """Bytes moved in one iteration, summed over workers."""
        return int(self.bytes.sum())

    def prefix(self, steps: int) -> Plan:
        """Return the plan of the first steps alone, for correspondingly fewer workers."""
        return replace(
            self,
            ways=self.ways[:steps],
            layouts={name: layout[:steps] for name, layout in self.layouts.items()},
            strategies={name: strategy[:steps] for name, strategy in self.strategies.items()},
        )

    def step_bytes(self) -> tuple[int, ...]:
        """Return each step's conditional cost in bytes: cost(steps 1..i) - cost(steps 1..i-1)."""
        return _step_bytes(self)

    def traffic(self) -> Traffic:
        """Return what every node reads and writes in one iteration."""
        return _traffic(self)

    def __str__(self) -> str:
        return as_text(summary_table(describe(self)))

    def __repr__(self) -> str:
        return f"<plan of {len(self.graph.nodes)} nodes for {grid(self.ways)} workers, seed {self.seed}>"


@lru_cache(maxsize=2)
def _traffic(plan: Plan) -> Traffic:
    return Traffic(plan)


@lru_cache(maxsize=8)
def _bytes(plan: Plan) -> NDArray[np.int64]:
    total = _traffic(plan).bytes()
    total.flags.writeable = False
    return total


@lru_cache(maxsize=8)
def _step_bytes(plan: Plan) -> tuple[int, ...]:
    whole = _traffic(plan)
    totals = [int(Traffic(plan.prefix(steps), like=whole).bytes().sum()) for steps in range(1, len(plan.ways))]
    costs = np.diff([0, *totals, plan.total_bytes])
    return tuple(int(cost) for cost in costs) if plan.ways else ()


def single_worker(plan: Plan) -> Plan:
    """Return the plan of the same graph and seed for one worker."""
    return plan.prefix(0)


def check_plan(plan: Plan) -> None:
    """Raise a PlanError, naming the place, where a decision is missing, unknown, or not eligible."""
    check_countable(plan.graph, plan.ways)
    check_names(plan.layouts, plan.graph.tensors, "tensors")
    found = signatures(plan.graph)
    check_names(plan.strategies, found, "nodes")
    for name, layout in plan.layouts.items():
        _check_layout(plan, name, layout)
    for node in plan.graph.nodes:
        _check_strategy(plan, node, found[node.name])
    _check_partial(plan, found)
    for old, new in plan.graph.updates.items():
        for step, (before, after) in enumerate(zip(plan.layouts[old], plan.layouts[new], strict=True)):
            if before != after:
                raise PlanError(
                    f"$.steps[{step}].tensors.{new}: expected {before}, as {old} which it replaces, found {after}"
                )


def check_countable(graph: Graph, ways: Sequence[int]) -> None:
    """Raise a PlanError where every worker reading and storing everything would move more than can be counted."""
    workers = math.prod(ways)
    check_workers(workers)
    sizes = {name: tensor.nbytes for name, tensor in graph.tensors.items()}
    once = sum(sizes[name] for node in graph.nodes for name in (*node.inputs, *node.outputs))
    if workers * once > MOST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise PlanError(
            f"expected a graph whose {workers} workers cannot move more than {MOST_BYTES} bytes, found "
            f"{workers * once} that they could; its largest tensor is {largest!r} with {sizes[largest]}"
        )


def check_workers(workers: int) -> None:
    """Raise a PlanError for more workers than a plan may have."""
    if workers > MOST_WORKERS:
        gigabytes = 8 * float(min(workers, 10**100)) ** 2 / 1e9
        raise PlanError(
            f"expected at most {MOST_WORKERS} workers, found {workers}: every exchange's bytes from worker to worker "
            f"are counted in a matrix, which would take {gigabytes:.3g} GB"
        )


def check_names(given: Mapping[str, object], known: Mapping[str, object], section: str, step: int = 0) -> None:
    """Raise a PlanError where a step's section ("tensors" or "nodes") lacks a name of the graph, or has another."""
    for name in known:
        if name not in given:
            raise PlanError(f"$.steps[{step}].{section}: expected an entry for {name!r}, found none")
    for name in given:
        if name not in known:
            raise PlanError(f"$.steps[{step}].{section}.{name}: expected a name of the graph's {section}")


def _check_layout(plan: Plan, name: str, layout: Layout) -> None:
    shape = plan.graph.tensors[name].shape
    for step, placement in enumerate(layout):
        where = f"$.steps[{step}].tensors.{name}"
        if isinstance(placement, Shard):
            if placement.dim >= len(shape):
                raise PlanError(f"{where}: expected a dimension of shape {list(shape)}, found {placement}")
            _check_extent(shape[placement.dim], plan.ways, step, f"{where}: {placement}")


def _check_strategy(plan: Plan, node: Node, signature: Signature) -> None:
    description = signature.description
    for step, choice in enumerate(plan.strategies[node.name]):
        where = f"$.steps[{step}].nodes.{node.name}"
        if choice == EVERYWHERE:
            continue
        if choice == TERMS:
            _check_terms(plan, node, step, signature)
            continue
        if choice not in description.strategies:
            why = description.refusals.get(choice, "no such index variable")
            known = ", ".join([*description.strategies, EVERYWHERE, TERMS])
            raise PlanError(f"{where}: expected one of {known} for {signature.op}, found {choice!r} ({why})")
        _check_extent(signature.extents[choice], plan.ways, step, f"{where}: {choice}")


def _check_terms(plan: Plan, node: Node, step: int, signature: Signature) -> None:
    """Partial operands pass through a node whose result is linear in them, taken together."""
    partial = frozenset(n for n, operand in enumerate(node.inputs) if plan.layouts[operand][step] == PARTIAL)
    if not partial or not signature.description.linear(partial):
        found = ", ".join(node.inputs[n] for n in sorted(partial)) or "none"
        raise PlanError(
            f"$.steps[{step}].nodes.{node.name}: {TERMS} expected partial operands in which {signature.op} is linear, "
            f"found {found}"
        )


def _check_partial(plan: Plan, found: Mapping[str, Signature]) -> None:
    """Only a result that is summed at a step can be stored partial there, and nothing that others look at."""
    partial = {name: layout for name, layout in plan.layouts.items() if PARTIAL in layout}
    if not partial:
        return
    makers = Traffic(plan).makers()
    shown = {*plan.graph.updates, *plan.graph.updates.values(), *plan.graph.metrics.values()}
    for name, layout in partial.items():
        steps = [step for step, placement in enumerate(layout) if placement == PARTIAL]
        maker = None if name in shown else makers.get(name)
        for step in steps:
            if maker is None or not _sums(found[maker], plan.strategies[maker][step]):
                raise PlanError(
                    f"$.steps[{step}].tensors.{name}: expected S<dimension> or R, found {PARTIAL}, which is only for "
                    f"results that their node sums at this step, and not for updated tensors or metrics"
                )


def _sums(signature: Signature, choice: str) -> bool:
    strategy = signature.description.strategies.get(choice)
    return choice == TERMS or (strategy is not None and strategy.reducer == "Sum")


def _check_extent(extent: int, ways: Sequence[int], step: int, what: str) -> None:
    if not eligible(extent, ways, step):
        raise PlanError(
            f"{what} is not eligible: expected an extent of at least {math.prod(ways[: step + 1])} to split "
            f"at this step, found {extent}"
        )
