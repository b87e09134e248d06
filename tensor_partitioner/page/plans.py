"""A plan as a part of a page: its summary, what else could be, and how it was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from planner.explanations.alternatives import Rejected, costliest, rejected
from planner.explanations.summary import summary
from planner.explanations.summary_record import Summary
from planner.explanations.words import Words
from planner.plans.plan import Plan
from planner.plans.search_record import SearchRecord
from planner.report.plan_facts import search_rows
from tensor_partitioner.display import quantity
from tensor_partitioner.page.records import PlanPart
from topologies import Machine

COSTLIEST = 10
"""Operators of which alternatives are worked out: those for which most moves."""

HEAVIEST = 4
"""Groups of weights, and ways of products, that are said in sentences."""

SHOWN = 6
"""Alternatives of an operator, the cheapest first."""

MOST_NODES = 4000
"""Of larger graphs no alternatives are worked out."""

MOST_WORKERS = 64
"""Up to so many workers, bytes are drawn pair by pair."""


def plan_part(plan: Plan, machine: Machine | None = None, *, is_named: bool = False) -> PlanPart:
    """Return a plan's summary, with its search unless parallelism is named; on a machine, operators' seconds."""
    whole = summary(plan, machine)
    return PlanPart(
        summary=whole,
        sentences=tuple(_sentences(whole)),
        alternatives=_alternatives(plan) if len(plan.graph.nodes) <= MOST_NODES else {},
        matrix=plan.bytes.tolist() if plan.workers <= MOST_WORKERS else (),
        search=() if is_named else tuple(search_rows(plan.search, plan.ways.factors)),
        costs={} if is_named else _costs(plan.search),
        unit="bytes" if plan.search.predicted is None else "seconds",
    )


def _sentences(whole: Summary) -> Iterator[str]:
    """Yield in sentences how most weights lie, and how products are computed."""
    for group in sorted(whole.parameters, key=lambda group: -group.nbytes)[:HEAVIEST]:
        many = f" ({len(group.names)} of them)" if len(group.names) > 1 else ""
        yield f"{group.pattern}{many}, {quantity(group.nbytes, 'B')}: {group.split}."
    splits = Counter[str]()
    for unit in whole.operators:
        if unit.is_contraction and unit.phase == "forward":
            splits[unit.split] += len(unit.names)
    for split, count in splits.most_common(HEAVIEST):
        noun = "product" if count == 1 else "products"
        yield f"{count} {noun} of the forward pass: {split}."


def _alternatives(plan: Plan) -> dict[str, Sequence[Rejected]]:
    """Return other strategies of the operators for which most moves, by node."""
    words = Words(plan.graph, plan.traffic().signatures)
    return {unit.node.name: rejected(plan, unit, words)[:SHOWN] for unit in costliest(plan, COSTLIEST)}


def _costs(search: SearchRecord) -> Mapping[str, float]:
    """Return the costs of what was found besides, and the lower bound."""
    costs: dict[str, float] = dict(search.bytes) if search.predicted is None else dict(search.predicted.candidates_s)
    if search.predicted is None and search.data_parallel_bytes is not None:
        costs["data parallelism"] = search.data_parallel_bytes
    if costs and search.lower_bound is not None:
        costs["lower bound"] = search.lower_bound
    return costs
