"""Alternatives from the papers: restrictions of the same space, solved by the same solver.

If a restriction cannot be satisfied at a step, because nothing can be split as it requires, all candidates of that step
are allowed and the cheapest is taken. If a restriction offers several choices, such as one dimension or another, only
the choices that can be satisfied at the largest number of steps are considered. Each search is exact within its
restriction, as far as the limits allow.

Named parallelism (Megatron-LM, DeepSpeed and FSDP) has one step per axis of the workers. Tensor parallelism splits
every contracted weight along one of its axes: the columns of one weight, the rows of the next, whole heads, the
vocabulary (`labels.py` chooses them). Everything else is computed by all workers (Shoeybi and others 2019, Megatron-LM)
or split along the sequence (Korthikanti and others 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from itertools import chain

from msgspec.structs import replace

from planner.errors import PlanError
from planner.graph.facts import copies_of_weights, masters_of_weights, no_data_parallelism
from planner.layout import EVERYWHERE, REPLICATE, Shard
from planner.parallel import STATES, WEIGHTS, Parallel
from planner.search.alternatives.labels import Axes, Index, Labelling, Labels
from planner.search.alternatives.parallelism import (
    Patterns,
    Wanted,
    best_plan_keeping_to_patterns,
    data_parallel as data_parallel,
    hybrid as hybrid,
    hybrid_may_cost_less as hybrid_may_cost_less,
    model_parallel as model_parallel,
)
from planner.search.coarse import CoarseGraph, Name, NodeVariable, TensorVariable, Variable
from planner.search.solver.problem import Limits
from planner.search.space import Outcome, Space
from tdl.traits import traits_of


def named(space: Space, limits: Limits) -> Outcome:
    """Return the plan of fewest bytes that follows `space.parallel`; raise PlanError if `space.parallel` is None."""
    if space.parallel is None:
        raise PlanError("searcher named: --parallel is missing, for example --parallel tp=4,dp=2")
    styles = _Styles(space.coarse, space.parallel)
    styles.check()
    wanted = {"dp": styles.data, "ep": styles.experts, "cp": styles.context, "tp": styles.tensor}

    def patterns_of_variable(v: int) -> Patterns:
        return [[wanted[axis](space.coarse.variables[v]) for axis in space.ways.axes]]

    outcome = best_plan_keeping_to_patterns(space, patterns_of_variable, limits)
    return replace(outcome, details={**outcome.details, "parallel": str(space.parallel)})


class _Facts:
    """Facts about a graph that do not depend on the degrees of parallelism."""

    def __init__(self, coarse: CoarseGraph) -> None:
        self._coarse, self.labelling = coarse, Labelling(coarse)
        copies, masters = copies_of_weights(coarse.graph), masters_of_weights(coarse.graph)
        self.roles = dict.fromkeys(copies, "weight") | dict.fromkeys(masters, "state")
        self.touched = {node: [tensor for tensor, _ in places] for node, places in self.labelling.places.items()}

    @cached_property
    def axes(self) -> Axes:
        """The axes. Cached, because they take long to compute."""
        return Axes(self._coarse, self.labelling)


_facts_of_graph = lru_cache(maxsize=1)(_Facts)
"""The facts of a coarse graph. Cached, because a decision asks for them once per degree of parallelism."""


class _Styles:
    """Allowed choices of a variable at a step of each axis of the workers."""

    def __init__(self, coarse: CoarseGraph, parallel: Parallel) -> None:
        self._graph, self._parallel, self._signatures = coarse.graph, parallel, coarse.signatures.values()
        facts = _facts_of_graph(coarse)
        labelling, self._roles, self._touched = facts.labelling, facts.roles, facts.touched
        self._batch, self._sequence, self._places = labelling.batch, labelling.sequence, labelling.expert_places
        self._experts: Mapping[Name, list[Index]] = {}
        self._tensor: Mapping[Name, list[Index]] = {}
        if max(parallel.ep, parallel.tp) > 1:
            axes = facts.axes
            experts = axes.of_experts(parallel.ep)
            self._experts = axes.places(experts if parallel.ep > 1 else ())
            self._tensor = axes.places(axes.of_tensor_parallelism(parallel.tp, experts) if parallel.tp > 1 else ())
        beside = (tensors for node, tensors in self._touched.items() if ("node", node) not in self._tensor)
        self._beside_axes = set(chain.from_iterable(beside))

    def check(self) -> None:
        """Raise PlanError if a degree of parallelism has nothing to divide."""
        named, short = self._parallel, no_data_parallelism(self._graph, self._parallel.dp)
        if named.ep > 1 and not self._experts:
            grouped = any(traits_of(of.description).grouped for of in self._signatures)
            otherwise = f"no layer has a number of experts that ep={named.ep} divides"
            raise PlanError(
                f"parallel {named}: {'ep cannot split grouped products, only tp can' if grouped else otherwise}"
            )
        if named.dp > 1 and short:
            raise PlanError(f"parallel {named}: dp needs at least {named.dp} samples, found {short}")
        if (named.cp > 1 or named.sp) and not self._sequence.tensors:
            raise PlanError(f"parallel {named}: cp and sp need an input of tokens or vectors [batch, sequence, ...]")
        if named.tp > 1 and not self._tensor:
            raise PlanError(f"parallel {named}: no weight has an axis that tp={named.tp} divides")

    def data(self, variable: Variable) -> Wanted:
        """Split the batch. Variables without a batch are replicated or sharded (see `_without_samples`)."""
        return _labelled(self._batch, variable) or self._without_samples(variable)

    def _without_samples(self, variable: Variable) -> Wanted:
        """Return the choices of data- and context-parallel workers for a variable without samples.

        The variable is replicated, or sharded as ZeRO requires. Master copies of weights are sharded with the optimizer
        states.
        """
        if not self._parallel.zero:
            return {_whole(variable)}
        if not isinstance(variable, TensorVariable):
            return {*variable.signature.description.strategies, EVERYWHERE}
        shards: Wanted = {Shard(dim) for dim in self._dimensions_of_no_other_axis(variable)} or {REPLICATE}
        roles = {self._roles.get(name, self._graph.tensors[name].role) for name in variable.members}
        if roles <= {"state", "weight"}:
            return shards if self._parallel.zero >= (WEIGHTS if "weight" in roles else STATES) else {REPLICATE}
        return {*shards, REPLICATE}

    def experts(self, variable: Variable) -> Wanted:
        """Split the experts' tensors and computations by expert; treat everything else as `data` does.

        Tokens go to experts and come back at nodes without expert weights that read by sample and write by expert, or
        the other way round.
        """
        by_batch, by_expert = _labelled(self._batch, variable), self._on_axes(self._experts, variable)
        if by_expert and (isinstance(variable, TensorVariable) or self._computes_with_experts(variable)):
            return by_expert
        return {*by_batch, *by_expert} or self._without_samples(variable)

    def _computes_with_experts(self, variable: Variable) -> bool:
        """Return True if a node reads or writes a tensor that has experts but no samples."""
        touched = (tensor for name in variable.members for tensor in self._touched[name])
        return any(("tensor", t) in self._experts and not self._batch.tensors.get(t) for t in touched)

    def _beside(self, by_expert: Wanted, variable: Variable) -> Wanted:
        """Return the choices of tensor-parallel workers for the experts' variables.

        They are replicated, except for tokens in transit: each worker sends and receives a part of these, and the parts
        are gathered at the expert.
        """
        others = {*_labelled(self._batch, variable), *by_expert}
        if len(others) == len(by_expert):
            return {_whole(variable)}
        if not isinstance(variable, TensorVariable):
            along = {*variable.signature.description.strategies} - others
            return {EVERYWHERE} if self._computes_with_experts(variable) else {EVERYWHERE, *along}
        parts = {Shard(dim) for dim, extent in enumerate(variable.shape) if extent % self._parallel.tp == 0}
        return parts - others or {REPLICATE}

    @staticmethod
    def _on_axes(places: Mapping[Name, list[Index]], variable: Variable) -> Wanted:
        """Return the choices that split a variable along the chosen axes; an empty set if no member lies on one."""
        chosen = {place for name in variable.members for place in places.get((_kind(variable), name), ())}
        return {Shard(place) if isinstance(place, int) else place for place in chosen}

    def _dimensions_of_no_other_axis(self, variable: TensorVariable) -> list[int]:
        """Return the dimensions that no other axis can split; only those with equal parts, if there are any."""
        names = [("tensor", name) for name in variable.members]
        split = {place for name in names for of in (self._tensor, self._experts) for place in of.get(name, ())}
        if self._parallel.cp > 1 or self._parallel.sp:
            split |= {dim for name in variable.members for dim in self._sequence.tensors.get(name, ())}
        free = [dim for dim in range(len(variable.shape)) if dim not in split]
        sharing = self._parallel.dp * self._parallel.cp
        return [dim for dim in free if variable.shape[dim] % sharing == 0] or free

    def context(self, variable: Variable) -> Wanted:
        """Split the sequence or, for tokens at experts, the experts' token slots."""
        along = _labelled(self._sequence, variable) or _labelled(self._places, variable)
        return along or self._without_samples(variable)

    def tensor(self, variable: Variable) -> Wanted:
        """Split what lies on a chosen axis along that axis; split the rest along the sequence, or not at all.

        Two kinds of variable are not split: those that only nodes on axes write and read, such as sums over a row of
        logits, and those without samples.
        """
        if chosen := self._on_axes(self._tensor, variable):
            return chosen
        if by_expert := self._on_axes(self._experts, variable):
            return self._beside(by_expert, variable)
        is_beside = not isinstance(variable, TensorVariable) or not self._beside_axes.isdisjoint(variable.members)
        if self._parallel.sp and is_beside and _labelled(self._batch, variable):
            return _labelled(self._sequence, variable) or {_whole(variable)}
        return {_whole(variable)}


def _kind(variable: Variable) -> str:
    return "tensor" if isinstance(variable, TensorVariable) else "node"


def _whole(variable: Variable) -> object:
    return REPLICATE if isinstance(variable, TensorVariable) else EVERYWHERE


def _labelled(labels: Labels, variable: Variable) -> Wanted:
    """Return the choices that split a variable's members along labelled dimensions; an empty set without labels."""
    if isinstance(variable, NodeVariable):
        return set(chain.from_iterable(labels.nodes[name] for name in variable.members))
    return {Shard(dim) for name in variable.members for dim in labels.tensors.get(name, ())}
