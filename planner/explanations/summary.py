"""A short summary of a plan: how parameters and operators are split, memory per worker, and where bytes and seconds go.

Equivalent layers form one group, named by a glob. Splits are described in plain words, and in the terms of DTensor,
Megatron-LM and FSDP where these have one. All of it is data that can be written as JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import topologies
from planner.explanations.accounts import NODE, bytes_by, flows
from planner.explanations.summary_record import Cause, OperatorGroup, ParameterGroup, Spent, Summary
from planner.explanations.words import (
    CONVOLUTION,
    POSITIONS,
    SAMPLES,
    Words,
    bytes_by_cause,
    is_copy_of_weights,
    over_ways,
    pattern_of,
    placement_word,
)
from planner.graph.facts import phases
from planner.graph.ir import ITEM_BYTES, Entry, Node, groups
from planner.graph.micro_batches import accumulates
from planner.grouping import summed
from planner.layout import PARTIAL, REPLICATE, TERMS, Placement, Shard, Strategy, elements, group_of, owned_by_all
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.search.coarse import TensorVariable, Ties
from planner.search.costs.domains import Domain, Strategies
from planner.search.objectives.timing import Time, kernels_of_nodes, slowest_worker_seconds
from planner.search.options import SearchOptions
from planner.search.run import space_of
from planner.search.space import Space, State


@dataclass(frozen=True, slots=True)
class PredictedSeconds:
    """Predicted seconds of an iteration: computation by node, messages by level of the machine, and latencies."""

    compute_s: Mapping[str, float]
    level_s: tuple[float, ...]
    latency_s: float

    @property
    def seconds(self) -> float:
        """Sum of all seconds: nothing overlaps."""
        return sum(self.compute_s.values()) + sum(self.level_s) + self.latency_s


def predicted(plan: Plan, machine: topologies.Machine) -> PredictedSeconds | None:
    """Return where the predicted seconds of an iteration go; None for plans in stages, which this does not cover.

    Raises TopologyError for a machine that cannot run the plan.
    """
    if any(group_of(choice) is not None for strategy in plan.strategies.values() for choice in strategy):
        return None
    ties = Ties(elementwise=False, gradients=False, updates=False, unrolled=False, repeats=False)
    space = space_of(plan.graph, SearchOptions(plan.ways, objective="time", machine=machine, ties=ties))
    states = [_state(space, plan, v) for v in range(len(space.coarse.variables))]
    domains = [space.domain(v, (state,)) for v, state in enumerate(states)]
    objective = space.objective
    if not isinstance(objective, Time):
        raise TypeError(f"expected the objective time, found {objective}")
    breakdown = objective.breakdown(space.coarse, domains, space.tables)
    return PredictedSeconds(dict(_computing(space, domains, objective)), breakdown.level_s, breakdown.latency_s)


def _computing(space: Space, domains: Sequence[Domain], objective: Time) -> Iterator[tuple[str, float]]:
    """Yield every node's seconds on its slowest worker, over all micro-batches."""
    for v, kernel, count in kernels_of_nodes(space.coarse):
        domain = domains[v]
        if isinstance(domain, Strategies):
            slowest_s = float(slowest_worker_seconds(kernel, domain, objective.workers)[0])
            yield space.coarse.variables[v].members[0], count * slowest_s


def _state(space: Space, plan: Plan, v: int) -> State:
    """Return a variable's state in a plan; for a node that carries terms, the operands are those the search offers."""
    variable = space.coarse.variables[v]
    if isinstance(variable, TensorVariable):
        return plan.layouts[variable.members[0]]
    chosen, options = plan.strategies[variable.members[0]], space.options_at_every_step(v)
    return tuple(_option(choice, of_step) for choice, of_step in zip(chosen, options, strict=True))


def _option(choice: str, options: Sequence[str]) -> str:
    if choice != TERMS:
        return choice
    return max((option for option in options if option.startswith(TERMS)), key=len, default=choice)


COLUMN_PARALLEL, ROW_PARALLEL = "ColumnParallelLinear", "RowParallelLinear"
EMBEDDING_PARALLEL = "VocabParallelEmbedding"
FULLY_SHARDED, STATE_SHARDED, DATA_PARALLEL = "FSDP fully_shard", "ZeRO-1", "DDP"


class Engines:
    """Names of other engines for the parameters of a plan."""

    def __init__(self, plan: Plan, words: Words, states: Mapping[str, tuple[str, ...]]) -> None:
        self._plan, self._words, self._states = plan, words, states
        self._entries = {entry.tensor: entry for entry in plan.graph.entries.values() if entry.tensor is not None}

    def dtensor(self, weight: str) -> tuple[str, ...]:
        """Return DTensor's placements of a parameter, one per step, in the dimensions of its module."""
        return tuple(self._placement(weight, placement) for placement in self._plan.layouts[weight])

    def _placement(self, weight: str, placement: Placement) -> str:
        if not isinstance(placement, Shard):
            return {REPLICATE: "Replicate()", PARTIAL: "Partial()"}.get(placement, "")
        shape, entry = self._plan.graph.tensors[weight].shape, self._entries.get(weight)
        grouped = groups(entry.shape, shape) if isinstance(entry, Entry) else None
        if grouped is None:
            return f"Shard({placement.dim})"
        dim, axes = next((dim, axes) for dim, axes in enumerate(grouped) if placement.dim in axes)
        is_outermost = all(shape[axis] == 1 for axis in axes[: axes.index(placement.dim)])
        return f"Shard({dim})" if is_outermost else f"_StridedShard({dim})"

    def megatron(self, weight: str) -> str:
        """Return the Megatron-LM layer that splits a weight in this way; empty if no step is tensor parallel."""
        return self._joined([self._layer(weight, step) for step in range(len(self._plan.ways))])

    def fsdp(self, weight: str) -> str:
        """Return the data-parallel scheme of a parameter; empty if no step splits the samples."""
        return self._joined([self._sharding(weight, step) for step in range(len(self._plan.ways))])

    def _joined(self, words: list[str]) -> str:
        """Return the words of all steps that have one; with the ways if other steps have none."""
        named = [(word, way) for word, way in zip(words, self._plan.ways, strict=True) if word]
        if len({word for word, _ in named}) == 1 and len(named) == len(words):
            return named[0][0]
        return over_ways([word for word, _ in named], [way for _, way in named]) if named else ""

    def _layer(self, weight: str, step: int) -> str:
        placement = self._plan.layouts[weight][step]
        name, reader = self.read_by(weight)
        if reader is None or not isinstance(placement, Shard) or self._plan.layouts[name][step] != placement:
            return ""
        variable = self._words.variable_of(reader, name, placement.dim)
        choice = self._plan.strategies[reader.name][step]
        if variable is None or variable != choice or not self._words.contracts(reader):
            return ""
        if self._words.looks_up(reader, variable):
            return EMBEDDING_PARALLEL
        signature = self._words.signatures[reader.name]
        if signature.category == CONVOLUTION or any(self._words.looks_up(reader, name) for name in signature.extents):
            return ""
        return ROW_PARALLEL if variable in signature.description.reduction_variables else COLUMN_PARALLEL

    def _sharding(self, weight: str, step: int) -> str:
        placement, (_, reader) = self._plan.layouts[weight][step], self.read_by(weight)
        if reader is None or self._words.of_choice(reader, self._plan.strategies[reader.name][step]) not in (
            SAMPLES,
            POSITIONS,
        ):
            return ""
        if isinstance(placement, Shard):
            return FULLY_SHARDED
        if placement != REPLICATE:
            return ""
        states = [self._plan.layouts[state][step] for state in self._states.get(weight, ())]
        return STATE_SHARDED if states and all(isinstance(state, Shard) for state in states) else DATA_PARALLEL

    def read_by(self, weight: str) -> tuple[str, Node | None]:
        """Return the tensor through which the first operator reads a weight, the weight or a copy, and the operator."""
        name = weight
        while (reader := next(iter(self._words.readers(name)), None)) and is_copy_of_weights(reader, self._words):
            name = reader.outputs[0]
        return name, reader


def summary(plan: Plan | str | Path, machine: topologies.Machine | None = None) -> Summary:
    """Return the summary of a plan (or plan.json); with a machine also where the computing time goes.

    Raises PlanError for anything that is not a plan.

    >>> import planner
    >>> plan = planner.plan(planner.model("mlp-2-16", batch=8), workers=4)
    >>> [(group.pattern, group.split, group.held_bytes) for group in planner.summary(plan).parameters]
    [('fc1.w', 'columns over 4', 256), ('fc2.w', 'rows over 2, columns over 2', 256)]
    """
    plan = plan_of(plan)
    prediction = None if machine is None else predicted(plan, machine)
    summarized = _Summarized(plan, {} if prediction is None else prediction.compute_s)
    operators = tuple(summarized.operators())
    return Summary(
        plan.search.model,
        plan.workers,
        plan.ways.factors,
        plan.total_bytes,
        tuple(summarized.parameters()),
        operators,
        tuple(summarized.causes()),
        tuple(_searched_for(plan) if machine is None else _spent(prediction, operators)),
        *summarized.held_by_fullest_worker(),
    )


class _Summarized:
    def __init__(self, plan: Plan, compute_s: Mapping[str, float]) -> None:
        self._compute_s = compute_s
        self._plan, self._words = plan, Words(plan.graph, plan.traffic().signatures)
        self._states = _states_by_weight(plan)
        self._engines = Engines(plan, self._words, self._states)
        self._moved = flows(plan)
        self._held = cache(lambda shape, layout: np.array([*map(elements, owned_by_all(shape, layout, plan.ways))]))

    def parameters(self) -> Iterator[ParameterGroup]:
        """Yield the groups of parameters: trained and frozen weights, in the graph's order."""
        tensors = self._plan.graph.tensors
        groups, alike = dict[tuple[object, ...], list[str]](), defaultdict[object, list[str]](list)
        group_of = self._words.alike.group_of
        for name, tensor in tensors.items():
            if tensor.is_parameter:
                lying = (self._plan.layouts[state] for state in self._states.get(name, ()))
                key = group_of(name), tensor.shape, tensor.dtype, self._plan.layouts[name], *lying
                groups.setdefault((*key, self._engines.megatron(name), self._engines.fsdp(name)), []).append(name)
                alike[group_of(name)].append(name)
        yield from (self._parameter_group(names, alike[group_of(names[0])]) for names in groups.values())

    def _parameter_group(self, names: Sequence[str], every: Sequence[str]) -> ParameterGroup:
        """Return the group of these corresponding parameters with equal layouts, among `every` one."""
        first = names[0]
        tensor, states = self._plan.graph.tensors[first], self._states.get(first, ())
        read, _ = self._engines.read_by(first)
        return ParameterGroup(
            pattern=pattern_of(every),
            layer=self._words.alike.layer_of(first),
            names=tuple(names),
            layers=len(every),
            shape=tensor.shape,
            dtype=tensor.dtype,
            layout=tuple(map(str, self._plan.layouts[first])),
            split=self._split(first, first),
            state_split=" and ".join(dict.fromkeys(self._split(first, state) for state in states)),
            dtensor=self._engines.dtensor(first),
            megatron=self._engines.megatron(first),
            fsdp=self._engines.fsdp(first),
            is_contracted=any(self._words.contracts(node) for node in self._words.readers(read)),
            nbytes=len(names) * tensor.nbytes,
            held_bytes=len(names) * int(self._held_bytes((first,)).max()),
            state_held_bytes=len(names) * int(self._held_bytes(states).max()),
        )

    def held_by_fullest_worker(self) -> tuple[int, int]:
        """Return the bytes of parameters and of their state on the worker that holds most of both."""
        tensors = self._plan.graph.tensors.values()
        weights = [tensor.name for tensor in tensors if tensor.is_parameter]
        held = self._held_bytes(weights)
        state = self._held_bytes([state for weight in weights for state in self._states.get(weight, ())])
        fullest = int((held + state).argmax())
        return int(held[fullest]), int(state[fullest])

    def _held_bytes(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the bytes of tensors that every worker holds: [worker]."""
        total = np.zeros(self._plan.workers, dtype=np.int64)
        for name in names:
            tensor = self._plan.graph.tensors[name]
            total += self._held(tensor.shape, self._plan.layouts[name]) * ITEM_BYTES[tensor.dtype]
        return total

    def _split(self, weight: str, name: str) -> str:
        """Return how a weight, or a state of its shape, is split, in the weight's terms."""
        tensors = self._plan.graph.tensors
        known = weight if tensors[name].shape == tensors[weight].shape else name
        words = [placement_word(self._words, known, placement) for placement in self._plan.layouts[name]]
        return over_ways(words, self._plan.ways.factors)

    def operators(self) -> Iterator[OperatorGroup]:
        """Yield the groups of nodes, in the graph's order."""
        groups: dict[tuple[Hashable, str, str, Strategy], list[Node]] = {}
        graph, strategies = self._plan.graph, self._plan.strategies
        updated, phase_of = frozenset(graph.updates.values()), phases(graph)
        bytes_of = bytes_by(NODE, self._moved)
        for node in graph.nodes:
            phase = "update" if updated.intersection(node.outputs) else phase_of[node.name]
            if phase == "update" and accumulates(node, graph.tensors):
                phase = "backward"  # gradients are summed after the last node that computes one
            group = self._words.alike.group_of(node.name)
            groups.setdefault((group, node.op, phase, strategies[node.name]), []).append(node)
        for (_, op, phase, strategy), nodes in groups.items():
            timed = [self._compute_s[node.name] for node in nodes if node.name in self._compute_s]
            yield OperatorGroup(
                pattern=pattern_of([node.name for node in nodes]),
                layer=self._words.alike.layer_of(nodes[0].name),
                op=op,
                phase=phase,
                names=tuple(node.name for node in nodes),
                strategy=strategy,
                split=self._words.of_strategy(nodes[0], strategy, self._plan.ways),
                is_contraction=self._words.contracts(nodes[0]),
                nbytes=sum(bytes_of[node.name] for node in nodes),
                seconds=sum(timed) if timed else None,
            )

    def causes(self) -> Iterator[Cause]:
        """Yield why bytes move, most bytes first."""
        for (kind, layers), nbytes in bytes_by_cause(self._moved, self._words).most_common():
            yield Cause(kind, layers, nbytes)


def _states_by_weight(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """Return the optimizer states of every weight: what else the node that updates it updates."""
    updates, tensors = {new: old for old, new in plan.graph.updates.items()}, plan.graph.tensors
    states: dict[str, tuple[str, ...]] = {}
    for node in plan.graph.nodes:
        updated = [updates[name] for name in node.outputs if name in updates]
        for weight in (name for name in updated if tensors[name].role == "weight"):
            states[weight] = tuple(name for name in updated if tensors[name].role == "state")
    return states


def _searched_for(plan: Plan) -> Iterator[Spent]:
    """Yield where seconds go on the machine that a plan was searched for, if under the objective time."""
    if (of_search := plan.search.predicted) is not None:
        yield Spent("computing", of_search.compute_s)
        yield from _communication(of_search.level_s, of_search.latency_s)


def _spent(prediction: PredictedSeconds | None, operators: Sequence[OperatorGroup]) -> Iterator[Spent]:
    """Yield where predicted seconds go, by part of the network and level of the machine."""
    if prediction is not None:
        computing = summed((group.layer, group.seconds) for group in operators if group.seconds is not None)
        for layer in sorted(computing, key=lambda layer: -computing[layer]):
            yield Spent(f"computing {layer}", computing[layer])
        yield from _communication(prediction.level_s, prediction.latency_s)


def _communication(level_s: Sequence[float], latency_s: float) -> Iterator[Spent]:
    for level, seconds in enumerate(level_s, start=1):
        yield Spent(f"messages across level {level}", seconds)
    yield Spent("latencies", latency_s)
