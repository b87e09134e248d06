"""A plan as parts of a page: layers that open, what lies where, what is computed how, and what else could be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from planner.explanations.alike import Alike
from planner.explanations.alternatives import costliest, rejected
from planner.explanations.seconds import predicted
from planner.explanations.summary import summary
from planner.explanations.summary_records import OperatorGroup, ParameterGroup, Summary
from planner.explanations.words import Words, over_ways
from planner.graph.facts import batch_size
from planner.plans.plan import Plan
from planner.plans.search_record import SearchRecord
from tensor_partitioner.display import exact_bytes, percent, product, quantity, seconds
from tensor_partitioner.page.records import Alternative, Amount, Layer, Operator, PlanPart, Tensor
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
    """Return a plan's layers and causes, its search unless parallelism is named; on a machine, operators' seconds."""
    whole = summary(plan)
    return PlanPart(
        model=plan.search.model or plan.graph.name or "model",
        workers=plan.workers,
        ways=plan.ways.factors,
        axes=plan.ways.axes,
        batch=batch_size(plan.graph),
        total_bytes=whole.total_bytes,
        short=tuple(_short(whole)),
        layers=tuple(_layers(plan, whole, machine)),
        causes=tuple(_causes(whole)),
        matrix=tuple(tuple(row) for row in plan.bytes.tolist()) if plan.workers <= MOST_WORKERS else (),
        searched=() if is_named else tuple(_searched(plan.search)),
        bounds=() if is_named else tuple(_bounds(plan.search)),
        bounds_unit="bytes" if plan.search.predicted is None else "seconds",
    )


def _short(whole: Summary) -> Iterator[str]:
    """Yield in sentences how most weights lie, and how products are computed."""
    heaviest = sorted(whole.parameters, key=lambda group: -group.nbytes)[:HEAVIEST]
    for group in heaviest:
        many = f" ({len(group.names)} of them)" if len(group.names) > 1 else ""
        yield f"{group.pattern}{many}, {quantity(group.nbytes, 'B')}: {group.split}."
    splits = Counter[str]()
    for unit in whole.operators:
        if unit.is_contraction and unit.phase == "forward":
            splits[unit.split] += len(unit.names)
    for split, count in splits.most_common(HEAVIEST):
        noun = "product" if count == 1 else "products"
        yield f"{count} {noun} of the forward pass: {split}."


def _causes(whole: Summary) -> Iterator[Amount]:
    """Yield bytes by what they are for, in all layers together, most first."""
    amounts = Counter[str]()
    for cause in whole.causes:
        amounts[cause.kind] += cause.nbytes
    for kind, nbytes in amounts.most_common():
        yield Amount(what=kind, value=nbytes)


def _layers(plan: Plan, whole: Summary, machine: Machine | None) -> Iterator[Layer]:
    prediction = None if machine is None else predicted(plan, machine)
    computing = {} if prediction is None else prediction.compute_s
    others = dict(_alternatives(plan)) if len(plan.graph.nodes) <= MOST_NODES else {}
    tensors: dict[str, list[Tensor]] = {}
    operators: dict[str, list[Operator]] = {}
    alike, layer_of = Counter(group.pattern for group in whole.parameters), Alike(plan.graph).layer_of
    for group in whole.parameters:
        tensors.setdefault(layer_of(group.names[0]), []).append(_tensor(group, is_only=alike[group.pattern] == 1))
    for unit in whole.operators:
        operators.setdefault(layer_of(unit.names[0]), []).append(_operator(unit, computing, others))
    for name in dict.fromkeys((*tensors, *operators)):
        yield Layer(name=name, tensors=tuple(tensors.get(name, ())), operators=tuple(operators.get(name, ())))


def _tensor(group: ParameterGroup, *, is_only: bool) -> Tensor:
    first, last = group.names[0], group.names[-1]
    return Tensor(
        name=group.pattern if is_only else first if first == last else f"{first} … {last}",
        layers=len(group.names),
        shape=group.shape,
        dtype=group.dtype,
        layout=group.layout,
        split=group.split,
        state=group.state_split,
        dtensor=group.dtensor,
        megatron=group.megatron,
        fsdp=group.fsdp,
        nbytes=group.nbytes,
        held=group.held_bytes + group.state_held_bytes,
    )


def _operator(
    group: OperatorGroup, computing: Mapping[str, float], others: Mapping[str, tuple[Alternative, ...]]
) -> Operator:
    timed = [computing[name] for name in group.names if name in computing]
    return Operator(
        name=group.pattern,
        op=group.op,
        phase=group.phase,
        count=len(group.names),
        strategy=group.strategy,
        split=group.split,
        nbytes=group.nbytes,
        seconds=float(f"{sum(timed):.4g}") if timed else None,
        alternatives=next((others[name] for name in group.names if name in others), ()),
    )


def _alternatives(plan: Plan) -> Iterator[tuple[str, tuple[Alternative, ...]]]:
    """Yield other strategies of the operators for which most moves, with what each would move more."""
    words = Words(plan.graph, plan.traffic().signatures)
    for unit in costliest(plan, COSTLIEST):
        yield (
            unit.node.name,
            tuple(
                Alternative(
                    split=over_ways(
                        [words.of_choice(unit.node, choice) for choice in other.strategy], plan.ways.factors
                    ),
                    strategy=other.strategy,
                    extra=other.extra_bytes,
                )
                for other in rejected(plan, unit)[:SHOWN]
            ),
        )


def _searched(search: SearchRecord) -> Iterator[tuple[str, str]]:
    """Yield how the plan was found, as names and values."""
    if not search.searcher:
        yield "search", "none: the plan was given"
        return
    yield "searcher", search.searcher
    yield "placements", search.placements
    yield "made least", "seconds on " + search.machine if search.machine else search.objective
    if search.pins:
        yield "pins", ", ".join(search.pins)
    if search.winner:
        yield "found by", search.winner
    if search.lower_bound is not None:
        bound = exact_bytes(int(search.lower_bound)) + " bytes"
        yield "nothing in its space costs less than", seconds(search.lower_bound) if search.predicted else bound
        yield "gap to that bound", percent(search.gap)
    else:
        yield "lower bound", "not sought by this searcher; certify with plan --search joint"
    if search.seconds is not None:
        yield "search took", seconds(search.seconds)
    for tried in search.factorisations:
        cost = seconds(tried.cost) if search.predicted else f"{exact_bytes(int(tried.cost))} bytes"
        yield f"tried {product(tried.ways)}", f"{cost}, found in {seconds(tried.seconds)}"


def _bounds(search: SearchRecord) -> Sequence[Amount]:
    """Return the costs of what was found besides, and the lower bound."""
    costs: dict[str, float] = dict(search.bytes) if search.predicted is None else dict(search.predicted.candidates_s)
    if search.predicted is None and search.data_parallel_bytes is not None:
        costs["data parallelism"] = search.data_parallel_bytes
    if costs and search.lower_bound is not None:
        costs["lower bound"] = search.lower_bound
    return [Amount(what=name, value=value) for name, value in costs.items()]
