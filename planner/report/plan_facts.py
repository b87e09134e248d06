"""Tables of a graph, a plan and a search record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.table import Table

import tdl
from planner.graph.facts import batch_size, no_data_parallelism, precision, recomputed
from planner.graph.ir import ITEM_BYTES, Graph
from planner.plans.plan import Plan
from planner.plans.records import SearchRecord, stages_of
from tensor_partitioner import display
from tensor_partitioner.display import exact_bytes, facts, grid, percent, product, quantity, seconds

Rows = Iterator[tuple[str, str]]


@display.tables.register
def graph_tables(graph: Graph) -> tuple[Table]:
    """Return the table of a graph: its size, and its operators, the most frequent first."""
    kinds = Counter(node.op for node in graph.nodes).most_common()
    rows = [*_graph(graph), ("operators", ", ".join(f"{count} {op}" for op, count in kinds))]
    return (facts(f"graph of {graph.name}" if graph.name else "graph", rows),)


@display.tables.register
def plan_tables(plan: Plan) -> tuple[Table]:
    """Return the table of a plan; a plan written by hand has few facts about a search."""
    rows = [*_graph(plan.graph), ("workers", grid(plan.ways.factors))]
    if shares := plan.ways.shares:
        rows.append(("shares", ", ".join(map(str, shares))))
    if (stages := stages_of(plan.ways)) > 1:
        rows.append(("stages", f"{stages}, {plan.schedule}"))
    rows += [*_moved(plan), *_opaque(plan), *_search_rows(plan.search, plan.ways.factors)]
    return (facts(f"plan of {plan.search.model}" if plan.search.model else "plan", rows),)


@display.tables.register
def search_tables(search: SearchRecord) -> tuple[Table]:
    """Return the table of a search record."""
    return (facts("search", search_rows(search)),)


def to_data(plan: Plan) -> dict[str, Any]:
    """Return the content of the table as plain data."""
    return {
        "model": plan.search.model or None,
        **msgspec.to_builtins(plan.training_record()),
        "nodes": len(plan.graph.nodes),
        "tensors": len(plan.graph.tensors),
        "weight_bytes": _weight_bytes(plan.graph),
        "workers": plan.workers,
        "ways": plan.ways.factors,
        **({"shares": shares} if (shares := plan.ways.shares) else {}),
        **({"schedule": plan.schedule} if stages_of(plan.ways) > 1 else {}),
        "search": msgspec.to_builtins(plan.search),
        "bytes": plan.total_bytes,
        "step_bytes": plan.step_bytes(),
        **({"opaque": opaque} if (opaque := opaque_nodes(plan)) else {}),
    }


def _weight_bytes(graph: Graph) -> int:
    return sum(tensor.nbytes for tensor in graph.tensors.values() if tensor.is_parameter)


def _graph(graph: Graph) -> Rows:
    yield "graph", f"{len(graph.nodes)} nodes, {len(graph.tensors)} tensors"
    size, count = batch_size(graph), graph.micro_batches
    yield "batch", f"{size} in {count} micro-batches" if size and count > 1 else str(size or "none")
    yield "precision", precision(graph)
    if count := recomputed(graph):
        yield "recomputed", f"{count} nodes"
    yield "weights", quantity(_weight_bytes(graph), "B")


def opaque_nodes(plan: Plan) -> dict[str, Any]:
    """Return the opaque operators with their numbers of nodes, how many run on one worker, and their bytes.

    The bytes are those moved to provide such nodes' operands and to store their results. Empty without opaque nodes.
    """
    signatures = plan.traffic().signatures
    if not any(signature.description.is_opaque for signature in signatures.values()):
        return {}
    opaque = [work for work in plan.traffic().work if signatures[work.node.name].description.is_opaque]
    exchanges = (entry for work in opaque for entry in work.exchanges())
    tensors = plan.graph.tensors
    moved = sum(times * int(hop.moved().sum()) * ITEM_BYTES[tensors[name].dtype] for name, hop, times in exchanges)
    named = Counter(str(work.node.attrs.get("target", work.node.op)) for work in opaque)
    on_one = sum(tdl.ON_ONE in work.strategy for work in opaque)
    return {"operators": dict(named.most_common()), "nodes": len(opaque), "on_one_worker": on_one, "bytes": moved}


def _opaque(plan: Plan) -> Rows:
    if opaque := opaque_nodes(plan):
        named = ", ".join(f"{count} {name}" for name, count in opaque["operators"].items())
        where = f"{opaque['on_one_worker']} on one worker" if opaque["on_one_worker"] else "all on every worker"
        yield "opaque operators", f"{opaque['nodes']} nodes, {where}: {named}"
        yield "  bytes moved for them", exact_bytes(opaque["bytes"])


def _moved(plan: Plan) -> Rows:
    """Yield the bytes moved, and those of plain data parallelism."""
    search, total = plan.search, plan.total_bytes
    yield from _asked(search)
    yield "bytes per iteration", exact_bytes(total)
    if len(plan.ways) > 1:
        for step, (way, cost) in enumerate(zip(plan.ways, plan.step_bytes(), strict=True)):
            name = plan.ways.axes[step] if plan.ways.axes else f"step {step + 1}"
            yield f"  {name}, {way} ways", exact_bytes(cost)
    if (moved := search.data_parallel_bytes) is not None:
        times = f", {moved / total:.3g} times as many" if moved and total else ""
        yield "data parallelism", exact_bytes(moved) + times
    elif search.winner and (why := no_data_parallelism(plan.graph, plan.workers)):
        yield "data parallelism", f"not possible: {why}"


def search_rows(search: SearchRecord, ways: tuple[int, ...] = ()) -> list[tuple[str, str]]:
    """Return the facts of a search, with its ways if given; for a plan written by hand, that there was none."""
    return [*_asked(search), *_search_rows(search, ways)] or [("search", "none (written by hand)")]


def _asked(search: SearchRecord) -> Rows:
    if search.searcher:
        yield "search", f"{search.searcher}, placements {search.placements or '-'}"


def _search_rows(search: SearchRecord, ways: tuple[int, ...]) -> Rows:
    yield from _predicted(search)
    if search.memory is not None:
        taken, limit = exact_bytes(search.memory.arena_bytes), exact_bytes(search.memory.limit_bytes)
        yield "fullest worker", f"{taken} of {limit} bytes allowed"
    if search.winner:
        yield from _bound(search, ways)
        yield "found by", _winner(search)
    if search.pins:
        yield "pins", ", ".join(search.pins)
    if search.seconds is not None:
        yield "search took", seconds(search.seconds)
    for number, tried in enumerate(search.factorisations):
        title = "" if number else "factorizations tried"
        yield title, f"{product(tried.ways)}: {_cost(tried.cost)}, search {seconds(tried.seconds)}"


def _predicted(search: SearchRecord) -> Rows:
    """Yield where the time of an iteration goes, for a plan searched under the objective time."""
    if (predicted := search.predicted) is None:
        return
    yield f"time per iteration on {search.machine}", seconds(search.cost)
    for level, cost in enumerate(predicted.level_s, start=1):
        yield f"  across level {level}", seconds(cost)
    yield "  latencies", seconds(predicted.latency_s)
    yield "  computation", seconds(predicted.compute_s)


def _bound(search: SearchRecord, ways: tuple[int, ...]) -> Rows:
    """Yield the distance of the plan from the optimum, and among which plans, if a searcher knows it."""
    if search.lower_bound is None or search.gap is None:
        least = search.details.get("its_space_has_at_least")
        if isinstance(least, int | float):
            yield "lower bound", f"{_cost(least)} of {search.searcher}'s plans, which do not include this one"
        else:
            yield "lower bound", f"{'unknown to' if search.searcher == 'joint' else 'not sought by'} {search.searcher}"
        return
    far = "exact" if search.is_exact else f"gap {percent(search.gap)}"
    yield "lower bound", f"{_cost(search.lower_bound)}, {far} (by {search.bound_by})"
    of_ways = f"ways {product(ways)}, " if ways else ""
    ties = ", ".join(search.ties) or "none"
    yield f"  of all plans of {search.bound_by}", f"placements {search.placements}, {of_ways}ties {ties}"


def _cost(cost: int | float) -> str:
    return seconds(cost) if isinstance(cost, float) else exact_bytes(cost)


def _winner(search: SearchRecord) -> str:
    costs: dict[str, int | float] = dict(search.predicted.candidates_s if search.predicted else search.bytes)
    if search.winner == search.searcher or search.searcher not in costs:
        return search.winner
    return f"{search.winner}: {_cost(costs[search.winner])}, {search.searcher} found {_cost(costs[search.searcher])}"
