"""Sharded data parallelism as plans: ZeRO's stages 1 to 3 (Rajbhandari and others, SC 2020), from a data-parallel plan.

The batch is split as before. Of every weight that can be split over all workers, a worker keeps and updates a share:

- stage 1: of the optimizer's state; each worker keeps its own term of the gradient, whole, and adds up its share of it;
- stage 2: of the gradient, too;
- stage 3: of the weight itself, which is gathered for the forward pass and again for the backward pass.

Stage 3 is what PyTorch's FSDP2 does where every module frees its weights after the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.errors import PlanError
from planner.graph.accumulation import accumulates
from planner.graph.ir import Node, Tensor
from planner.layout import PARTIAL, REPLICATE, TERMS, Layout, Shard, Signature, Strategy, signatures
from planner.plans.gathered import gather_for_each_pass
from planner.plans.plan import Plan
from planner.plans.scattered import scatter_each_micro_batch
from planner.plans.search_record import SearchRecord

STAGES = (1, 2, 3)
OPTIMIZER_STATE, GRADIENT, WEIGHT = STAGES


def shard_data_parallel(plan: Plan, stage: int) -> Plan:
    """Return the plan with what the stage says shared out; a PlanError if it has several steps."""
    if stage not in STAGES or len(plan.ways) > 1:
        raise PlanError(
            f"expected a stage of {STAGES} and a plan of one step, found {stage} and {len(plan.ways)} steps"
        )
    if plan.workers == 1:
        return plan
    sharding = _Sharding(plan, stage)
    for weight in plan.graph.updates:
        if plan.graph.tensors[weight].role == "weight":
            sharding.share_out(weight)
    record = SearchRecord(
        model=plan.search.model, searcher=f"zero-{stage}", placements="S,R,P" if stage == 1 else "S,R"
    )
    sharded = replace(plan, layouts=sharding.layouts, strategies=sharding.strategies, search=record)
    sharded = _with_gathers(sharded, sharding.gathered) if stage == WEIGHT else sharded
    return scatter_each_micro_batch(sharded) if stage >= GRADIENT else sharded


def _with_gathers(plan: Plan, weights: Mapping[str, str]) -> Plan:
    """Return the plan whose passes read copies of what is shared out; every worker copies its share, by a variable."""
    graph, copies = gather_for_each_pass(plan.graph, weights)
    layouts = {**plan.layouts, **dict.fromkeys((copy.name for copy in copies), (REPLICATE,))}
    strategies = {**plan.strategies, **{copy.name: (weights[copy.inputs[0]],) for copy in copies}}
    return replace(plan, graph=graph, layouts=layouts, strategies=strategies)


class _Sharding:
    def __init__(self, plan: Plan, stage: int) -> None:
        self.layouts: dict[str, Layout] = dict(plan.layouts)
        self.strategies: dict[str, Strategy] = dict(plan.strategies)
        self._graph, self._workers, self._stage = plan.graph, plan.workers, stage
        self._signatures: Mapping[str, Signature] = signatures(plan.graph)
        self._makers = {name: node for node in plan.graph.nodes for name in node.outputs}
        self.gathered: dict[str, str] = {}

    def share_out(self, weight: str) -> None:
        """Share out a weight's optimizer state and, as the stage says, its gradient and itself."""
        graph, tensor = self._graph, self._graph.tensors[weight]
        dim = _dimension(tensor, self._workers)
        if dim is None:
            return
        new = graph.updates[weight]
        value = self._makers[new].inputs[0]
        for node in self._update_of(new, value):
            self._split(node, dim)
            for name in (*node.inputs, *node.outputs):
                if graph.tensors[name].shape == tensor.shape and name not in (weight, value, new):
                    self._place(name, dim)
        if self._stage == WEIGHT:
            self.layouts |= dict.fromkeys((weight, new), (Shard(dim),))
            casts = self._casts(weight)
            for node in casts:
                self._split(node, dim)
                self.layouts[node.outputs[0]] = (Shard(dim),)
            self.gathered |= dict.fromkeys((node.outputs[0] for node in casts) if casts else (weight,), f"i{dim}")

    def _update_of(self, new: str, value: str) -> Iterator[Node]:
        """Yield the node that makes a weight's new self of its value, and those between the weight's gradient and it.

        The value is the weight, or what the forward pass makes of it first.
        """
        waiting, shape = [self._makers[new]], self._graph.tensors[new].shape
        while waiting:
            node = waiting.pop()
            yield node
            read = (name for name in node.inputs if self._graph.tensors[name].shape == shape and name != value)
            makers = map(self._makers.get, read)
            waiting += [maker for maker in makers if maker is not None and self._is_between(maker)]

    def _is_between(self, node: Node) -> bool:
        elementwise = self._signatures[node.name].description.is_elementwise
        return elementwise and node.forward is None and not accumulates(node, self._graph.tensors)

    def _split(self, node: Node, dim: int) -> None:
        index = self._signatures[node.name].description.outputs[0].index[dim]
        self.strategies[node.name] = (next(iter(index.variables)),)

    def _place(self, name: str, dim: int) -> None:
        """Shard a state, or what an update computes; a gradient that is a sum of the workers' terms by the stage.

        What is made of terms that are partial is made of every worker's own.
        """
        maker = self._makers.get(name)
        is_gradient = maker is not None and not self._is_between(maker) and name not in self._graph.updates.values()
        if maker is not None and is_gradient and self._is_of_terms(maker):
            self.strategies[maker.name] = (TERMS,)
        if not is_gradient or self._stage >= GRADIENT:
            self.layouts[name] = (Shard(dim),)
        elif self.layouts[name] == (REPLICATE,) and maker is not None and self._is_summed(maker):
            self.layouts[name] = (PARTIAL,)

    def _is_of_terms(self, node: Node) -> bool:
        terms = frozenset(place for place, name in enumerate(node.inputs) if self.layouts[name] == (PARTIAL,))
        return bool(terms) and self._signatures[node.name].description.linear(terms)

    def _is_summed(self, node: Node) -> bool:
        """Return True if what the workers make of a node's results are terms of them."""
        (chosen,), rules = self.strategies[node.name], self._signatures[node.name].description.strategies
        return chosen == TERMS or (chosen in rules and rules[chosen].reducer == "Sum")

    def _casts(self, weight: str) -> list[Node]:
        """Nodes that copy a weight in another dtype."""
        return [node for node in self._graph.nodes if node.inputs == (weight,) and self._is_cast(node)]

    def _is_cast(self, node: Node) -> bool:
        source, result = (self._graph.tensors[name] for name in (*node.inputs, *node.outputs[:1]))
        return source.dtype != result.dtype and self._signatures[node.name].description.is_elementwise


def _dimension(tensor: Tensor, workers: int) -> int | None:
    """Return along which dimension a tensor is shared out: one whose parts are equal, if there is one."""
    eligible = [dim for dim, extent in enumerate(tensor.shape) if extent >= workers]
    return min(eligible, key=lambda dim: (tensor.shape[dim] % workers != 0, dim), default=None)
