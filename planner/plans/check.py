"""Check a plan: every decision exists and is eligible, and the record of its search does not contradict it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from planner.errors import PlanError
from planner.graph.facts import batch_size
from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import tensors_read_as_terms
from planner.layout import (
    EVERYWHERE,
    PARTIAL,
    TERMS,
    At,
    Layout,
    PlacementSet,
    Shard,
    Signature,
    Ways,
    can_split,
    eligible,
    group_of,
)
from planner.layout.region import first_eligible
from planner.layout.ways import STAGES
from planner.plans.plan import Plan
from planner.plans.records import INTERLEAVED, SearchRecord, read_schedule, stages_of

MOST_BYTES = 1 << 60
"""Upper limit of the bytes that a plan may move, so that sums of counts fit in 64 bits."""

ROUNDING = 1e-6
"""Relative tolerance of reported figures: gaps are written to six digits."""

HOPS = 2
"""Largest number of hops of a result from where it is computed to where it is stored."""

MOST_WORKERS = 1024
"""Largest number of workers: beyond, the matrices and tables per pair of workers outgrow a computer."""

MOST_SHARE = 10**9
"""Largest share of a worker."""


Claims = Iterator[tuple[str, str, object]]
"""Contradictions of the plan: the place, what was expected, and what was stated."""


def check_plan(plan: Plan) -> None:
    """Raise PlanError, naming the place, if a decision is missing, unknown or not eligible."""
    check_countable(plan.graph, plan.ways)
    check_schedule(plan.schedule, stages_of(plan.ways), plan.graph.micro_batches)
    check_names(plan.layouts, plan.graph.tensors, "tensors")
    check_names(plan.strategies, {node.name: node for node in plan.graph.nodes}, "nodes")
    by_node = plan.traffic().signatures
    for name, layout in plan.layouts.items():
        _check_layout(plan, name, layout)
    for node in plan.graph.nodes:
        _check_strategy(plan, node, by_node[node.name])
    _check_partial(plan, by_node)
    for old, new in plan.graph.updates.items():
        for step, (before, after) in enumerate(zip(plan.layouts[old], plan.layouts[new], strict=True)):
            if before != after:
                raise PlanError(
                    f"$.steps[{step}].tensors.{new}: expected {before}, as {old} which it replaces, found {after}"
                )


def check_schedule(schedule: str, stages: int, micro_batches: int) -> None:
    """Raise PlanError for an unknown schedule, or one that does not suit the stages and micro-batches."""
    try:
        name, _ = read_schedule(schedule)
    except PlanError as error:
        raise PlanError(f"$.schedule: {error}") from error
    if name == INTERLEAVED and (stages == 1 or (micro_batches > 1 and micro_batches % stages)):
        expected = "stages, from 2" if stages == 1 else f"a multiple of its {stages} stages in micro-batches"
        actual = f"{stages} stage" if stages == 1 else str(micro_batches)
        raise PlanError(f"$.schedule: {schedule} expected {expected}, found {actual}")


def check_search(plan: Plan) -> None:
    """Raise PlanError, naming the place, if the record of the search contradicts the plan."""
    for claims in (_placements, _bytes, _factorisations, _bound):
        for where, expected, stated in claims(plan, plan.search):
            raise PlanError(f"$.{where}: expected {expected}, found {'none' if stated is None else stated}")


def _placements(plan: Plan, search: SearchRecord) -> Claims:
    """Yield the placements that were not among those searched."""
    if not search.placements:  # as in a plan written by hand
        return
    if search.placements not in list(PlacementSet):
        yield "search.placements", f"one of {'; '.join(PlacementSet)}", repr(search.placements)
    letters, terms = PlacementSet(search.placements).letters, tensors_read_as_terms(plan.graph)
    for name, layout in plan.layouts.items():
        for step, placement in enumerate(layout):
            letter = str(placement)[0]
            if letter in letters or letter == "@" or (letter == "P" and name in terms):
                continue
            forced = first_eligible(plan.graph.tensors[name].shape, plan.ways, step) is None
            if letter != "R" or not (forced or plan.ways.axes[step : step + 1] == (STAGES,)):
                yield f"steps[{step}].tensors.{name}", f"{search.placements}, as in $.search", placement


def _bytes(plan: Plan, search: SearchRecord) -> Claims:
    """Yield contradictions of the recorded bytes.

    Data parallelism needs a sample per worker and has an upper bound on its bytes; the winner's bytes must be those of
    the plan, and its predicted seconds must be present.
    """
    moved, samples, workers = search.data_parallel_bytes, batch_size(plan.graph) or 0, plan.workers
    most = HOPS * most_moved_bytes(plan.graph, workers) if plan.ways else 0
    if moved is not None and (samples < workers or moved > most):
        told = f"none, with {samples} samples," if samples < workers else f"at most {most}"
        yield "search.data_parallel_bytes", f"{told} for {workers} workers", moved
    if search.winner and search.bytes.get(search.winner) != plan.total_bytes:
        expected = f"the {plan.total_bytes} bytes of {search.winner!r}"
        yield "search.bytes", expected, search.bytes.get(search.winner)
    if search.predicted is not None and search.winner not in search.predicted.candidates_s:
        yield "search.predicted.candidates_s", f"seconds of {search.winner!r}", None


def _factorisations(plan: Plan, search: SearchRecord) -> Claims:
    """Yield contradictions of the recorded factorizations, of which the plan must be the best."""
    where = "search.factorisations"
    for number, tried in enumerate(search.factorisations):
        if math.prod(tried.ways) != plan.workers:
            yield f"{where}[{number}].ways", f"{plan.workers} workers", list(tried.ways)
        if not search.winner:
            yield "search.winner", "the candidate that costs the least", None
        if tried.cost * (1 + ROUNDING) < search.cost:
            yield f"{where}[{number}].cost", f"no less than the plan's {search.cost}", tried.cost
    costs = [tried.cost for tried in search.factorisations if tried.ways == tuple(plan.ways)]
    if search.factorisations and not (costs and math.isclose(costs[0], search.cost, rel_tol=ROUNDING)):
        yield where, f"{search.cost} for the plan's ways {list(plan.ways)}", costs or None


def _bound(plan: Plan, search: SearchRecord) -> Claims:
    """Yield contradictions of the lower bound: it must belong to a candidate and not exceed the plan's cost."""
    bound, bound_by = search.lower_bound, search.bound_by
    if (bound is None) != (not bound_by):
        yield (
            "search.bound_by",
            "a lower bound and its searcher",
            f"{'none' if bound is None else bound} by {bound_by!r}",
        )
    if bound is None:
        return
    if bound_by not in (search.searcher, search.winner, "joint"):
        yield "search.bound_by", f"{search.searcher or search.winner} or joint", repr(bound_by)
    if not search.winner:
        yield "search.winner", "the candidate that the lower bound is about", None
    if bound > search.cost * (1 + ROUNDING):
        yield "search.lower_bound", f"at most the plan's {search.cost}", bound


def check_countable(graph: Graph, ways: Ways) -> None:
    """Raise PlanError if every worker reading and storing everything would move more bytes than can be counted."""
    workers = ways.workers
    check_workers(workers)
    if (most := most_moved_bytes(graph, workers)) > MOST_BYTES:
        largest = max(graph.tensors, key=lambda name: graph.tensors[name].nbytes)
        raise PlanError(
            f"the graph is too large: {workers} workers could move {most} bytes, more than {MOST_BYTES}; "
            f"its largest tensor is {largest!r} with {graph.tensors[largest].nbytes}"
        )


def most_moved_bytes(graph: Graph, workers: int) -> int:
    """Return the bytes that would move if every worker read and stored everything."""
    nbytes = {name: tensor.nbytes for name, tensor in graph.tensors.items()}
    return workers * sum(nbytes[name] for node in graph.nodes for name in (*node.inputs, *node.outputs))


def check_workers(workers: int) -> None:
    """Raise PlanError for more workers than a plan may have."""
    if workers > MOST_WORKERS:
        raise PlanError(
            f"expected at most {MOST_WORKERS} workers, found {workers}: bytes are counted for each pair of workers, "
            "which takes too much time and memory for more"
        )


def check_shares(shares: Sequence[int], workers: int, what: str = "shares") -> None:
    """Raise PlanError unless there is a share of at least 1 for each worker."""
    if len(shares) != workers:
        raise PlanError(f"{what}: expected one for each of {workers} workers, found {len(shares)}")
    for number, share in enumerate(shares):
        if type(share) is not int or not 1 <= share <= MOST_SHARE:
            raise PlanError(f"{what}[{number}]: expected a whole number from 1 to {MOST_SHARE}, found {share!r}")


def check_names(given: Mapping[str, object], known: Mapping[str, object], section: str, step: int = 0) -> None:
    """Raise PlanError if a step's section ("tensors" or "nodes") lacks a name of the graph, or has another one."""
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
        elif isinstance(placement, At):
            _check_group(placement.group, plan.ways, step, where)


def _check_strategy(plan: Plan, node: Node, signature: Signature) -> None:
    description = signature.description
    for step, choice in enumerate(plan.strategies[node.name]):
        where = f"$.steps[{step}].nodes.{node.name}"
        if choice == TERMS:
            _check_terms(plan, node, step, signature)
        elif (group := group_of(choice)) is not None:
            _check_group(group, plan.ways, step, where)
        elif choice != EVERYWHERE and choice not in description.strategies:
            why = description.refusals.get(choice, "no such index variable")
            known = ", ".join([*description.strategies, EVERYWHERE, TERMS, "@<group>"])
            raise PlanError(f"{where}: expected one of {known} for {signature.op}, found {choice!r} ({why})")
        elif choice != EVERYWHERE and not can_split(signature, choice, plan.ways, step):
            _check_extent(signature.extents[choice], plan.ways, step, f"{where}: {choice}")


def _check_group(group: int, ways: Ways, step: int, where: str) -> None:
    if group >= ways[step]:
        raise PlanError(f"{where}: expected a group from @0 to @{ways[step] - 1}, found @{group}")


def _check_terms(plan: Plan, node: Node, step: int, signature: Signature) -> None:
    """Raise PlanError unless the node is linear in its partial operands, taken together."""
    partial = frozenset(n for n, operand in enumerate(node.inputs) if plan.layouts[operand][step] == PARTIAL)
    if not partial or not signature.description.linear(partial):
        operands = ", ".join(node.inputs[n] for n in sorted(partial)) or "none"
        raise PlanError(
            f"$.steps[{step}].nodes.{node.name}: {TERMS} expected partial operands in which {signature.op} is linear, "
            f"found {operands}"
        )


def _check_partial(plan: Plan, by_node: Mapping[str, Signature]) -> None:
    """Raise PlanError for a partial tensor that is not summed at that step, or is an update or a metric."""
    partial = [
        (name, step)
        for name, layout in plan.layouts.items()
        for step, placement in enumerate(layout)
        if placement == PARTIAL
    ]
    if partial:
        makers = {name: node.name for node in plan.graph.nodes for name in node.outputs}
        shown = {*plan.graph.updates, *plan.graph.updates.values(), *plan.graph.metrics.values()}
        for name, step in partial:
            maker = None if name in shown else makers.get(name)
            if maker is None or not _sums(by_node[maker], plan.strategies[maker][step]):
                raise PlanError(
                    f"$.steps[{step}].tensors.{name}: expected S<dimension>, R or @<group>, found {PARTIAL}, which is "
                    f"only for results that their node sums at this step, and not for updated tensors or metrics"
                )


def _sums(signature: Signature, choice: str) -> bool:
    strategy = signature.description.strategies.get(choice)
    return choice == TERMS or (strategy is not None and strategy.reducer == "Sum")


def _check_extent(extent: int, ways: Ways, step: int, what: str) -> None:
    if not eligible(extent, ways, step):
        least = "which no part is empty" if ways.shares else f"at least {ways.prefix(step + 1).workers} to split"
        raise PlanError(f"{what} is not eligible: expected an extent of {least} at this step, found {extent}")
