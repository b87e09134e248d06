"""Pipeline stages: extend a plan of one stage's workers, found by the search, to a plan of all stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain as joined, pairwise

import numpy as np
from numpy.typing import NDArray

import topologies
from planner.errors import PlanError
from planner.graph.chain import Chain, chain_of, crossing_bytes
from planner.graph.ir import ITEM_BYTES, Graph, Node
from planner.graph.micro_batches import accumulates, can_add_up
from planner.layout import Ways, elements, owned_by_all
from planner.layout.geometry import Strategy, split_steps
from planner.layout.region import length, runs_of_workers
from planner.plans.check import check_plan, check_schedule, check_workers
from planner.plans.plan import Plan
from planner.plans.records import DEFAULT, SearchRecord, read_schedule
from planner.search.costs.domains import strategies_domain
from planner.search.objectives.timing import NodeKernel, kernel_of_node, slowest_worker_seconds, workers_of_machine
from planner.search.stages.placing import Placing, best_cut

ArenasOf = Callable[[Plan], Sequence[int]]


def with_stages(  # noqa: PLR0913 -- the options of a user, by name
    plan: Plan,
    stages: int,
    machine: topologies.Machine | None = None,
    *,
    schedule: str = DEFAULT,
    limit_bytes: int | None = None,
    arenas_of: ArenasOf | None = None,
) -> Plan:
    """Return a plan for `stages` times the workers; each group has a stage and divides it as `plan` does.

    With an interleaved schedule each stage has several chunks: chunk c of stage s is run number c * stages + s of the
    network. The forward pass is cut so that the slowest stage is as fast as possible, in predicted seconds on a machine
    or else in operations. Among such cuts, the one with the fewest bytes crossing is taken. No arena exceeds the limit.
    Raises PlanError if there is no such cut.
    """
    if plan.ways.shares:
        raise PlanError("stages: expected workers with equal shares")
    check_workers(stages * plan.workers)
    check_schedule(schedule, stages, plan.graph.micro_batches)
    chain, cut_of = chain_of(plan.graph), _Cuts(plan, stages * _chunks(plan.graph, schedule), machine)
    largest = np.inf
    while True:
        cut = cut_of.within(largest)
        pipelined = staged(plan, chain, cut, schedule)
        if limit_bytes is None or arenas_of is None or (needed := max(arenas_of(pipelined))) <= limit_bytes:
            check_plan(pipelined)
            return pipelined
        most = cut_of.most_held_bytes(cut)
        largest = min(most * (1 - 1e-9), most * limit_bytes / needed)


class _Cuts:
    """The best cuts of a plan's chain, under limits on the bytes that a stage holds."""

    def __init__(self, plan: Plan, stages: int, machine: topologies.Machine | None) -> None:
        self._stages, chain = stages, chain_of(plan.graph)
        self._costs = chain.per_link(chain.of_node, node_costs(plan, machine))
        self._crossing = crossing_bytes(plan.graph, chain).astype(float)
        ends = np.concatenate(([0.0], np.cumsum(chain.per_link(chain.of_tensor, _kept_bytes(plan)))))
        self._held: NDArray[np.float64] = ends[None, :] - ends[:, None]

    def within(self, largest: float) -> tuple[int, ...]:
        """Return the best cut whose stages hold at most `largest` bytes."""
        return best_cut(self._costs, self._stages, self._crossing, self._held <= largest)

    def most_held_bytes(self, cut: Sequence[int]) -> float:
        """Return the bytes held by the stage that holds most."""
        return max(float(self._held[begin, end]) for begin, end in pairwise(cut))


def _chunks(graph: Graph, schedule: str) -> int:
    """Return the number of runs of links per stage; 1 without micro-batches."""
    return read_schedule(schedule)[1] if graph.micro_batches > 1 else 1


def staged(plan: Plan, chain: Chain, cut: Sequence[int], schedule: str = DEFAULT) -> Plan:
    """Return the plan in which stages take the runs of links in turn; `cut` gives the starts of runs and the end."""
    stages = (len(cut) - 1) // _chunks(plan.graph, schedule)
    run = np.searchsorted(cut, range(chain.links), side="right") - 1
    run_of = {name: int(run[chain.of_node[name]]) for name in _with_forward(plan.graph.nodes, chain)}
    plan = replace(plan, graph=_adding_up_apart(plan.graph, {name: n % stages for name, n in run_of.items()}))
    placing = Placing(plan.graph, stages, run_of)
    placements, choices = placing.placements(), placing.choices()
    pipelined = replace(
        plan,
        ways=plan.ways.within_stages(stages),
        schedule=schedule,
        layouts={name: (placements[name], *layout) for name, layout in plan.layouts.items()},
        strategies={name: (choices[name], *strategy) for name, strategy in plan.strategies.items()},
    )
    return replace(pipelined, search=_record(plan.search, pipelined, stages))


def _adding_up_apart(graph: Graph, stage_of: Mapping[str, int]) -> Graph:
    """Let terms of several stages accumulate where they are computed, and sum them once after the micro-batches."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    readers = Counter(name for node in graph.nodes for name in node.inputs)

    def may_be_apart(term: str) -> bool:
        return term in makers and readers[term] == 1 and can_add_up(makers[term], graph.tensors)

    def apart(name: str) -> tuple[str, ...]:
        terms = tuple(dict.fromkeys(makers[name].inputs)) if accumulates(makers[name], graph.tensors) else ()
        stages = {stage_of.get(makers[term].name) for term in terms if term in makers}
        return terms if len(stages) > 1 and all(map(may_be_apart, terms)) else (name,)

    accumulated = joined.from_iterable(apart(name) for name in graph.accumulated)
    return replace(graph, accumulated=tuple(accumulated)) if graph.micro_batches > 1 else graph


def _with_forward(nodes: Sequence[Node], chain: Chain) -> list[str]:
    """Return the forward nodes that have a link, and the nodes derived from them."""
    forward = {node.name for node in nodes if node.name in chain.forward}
    return [node.name for node in nodes if node.name in forward or node.forward in forward]


def _record(search: SearchRecord, plan: Plan, stages: int) -> SearchRecord:
    """Return the search record of all stages; bytes and bounds of the record covered one stage's workers only."""
    winner = search.winner or "stages"
    return SearchRecord(
        model=search.model,
        searcher=search.searcher,
        placements=search.placements,
        winner=winner,
        ties=search.ties,
        pins=search.pins,
        bytes={winner: plan.total_bytes},
        details={name: text for name, text in search.details.items() if name == "parallel"} | {"stages": stages},
    )


def node_costs(plan: Plan, machine: topologies.Machine | None) -> Mapping[str, float]:
    """Return the cost of every node on its slowest worker: seconds on a machine, else operations."""
    cost = cache(partial(_cost, ways=plan.ways, machine=machine))
    tensors, signatures = plan.graph.tensors, plan.traffic().signatures
    return {
        node.name: cost(kernel_of_node(node, signatures[node.name], tensors), plan.strategies[node.name])
        for node in plan.graph.nodes
    }


def _cost(kernel: NodeKernel, strategy: Strategy, ways: Ways, machine: topologies.Machine | None) -> float:
    if machine is not None:
        strategies = strategies_domain(kernel.signature, ways, (strategy,))
        return float(slowest_worker_seconds(kernel, strategies, workers_of_machine(machine, ways))[0])
    steps = split_steps(strategy)
    extents = {
        name: max(map(length, runs_of_workers(extent, steps[name], ways))) if name in steps else extent
        for name, extent in kernel.signature.extents.items()
    }
    return kernel.signature.description.operations(extents)


def _kept_bytes(plan: Plan) -> Mapping[str, float]:
    """Return the bytes of weights, state and activations kept for the backward pass, on the worker that keeps most."""
    later = {name for node in plan.graph.nodes if node.forward is not None for name in node.inputs}
    kept = dict[str, float]()
    for name, tensor in plan.graph.tensors.items():
        if tensor.init is not None or name in later:
            regions = owned_by_all(tensor.shape, plan.layouts[name], plan.ways)
            kept[name] = float(max(map(elements, regions)) * ITEM_BYTES[tensor.dtype])
    return kept
