"""A plan in a few lines: how parameters and operators are split, what each worker holds, where bytes and seconds go.

Alike layers are one group, named by a glob. Splits are said in plain words, and in those of DTensor, Megatron-LM and
FSDP where these have one. All is data that can be written as JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import topologies
from planner.explanations.accounts import NODE, bytes_by, flows
from planner.explanations.alike import pattern_of
from planner.explanations.causes import bytes_by_cause
from planner.explanations.engines import Engines
from planner.explanations.seconds import PredictedSeconds, predicted
from planner.explanations.summary_record import Cause, OperatorGroup, ParameterGroup, Spent, Summary
from planner.explanations.words import Words, over_ways, placement_word
from planner.graph.accumulation import accumulates
from planner.graph.facts import phases
from planner.graph.ir import ITEM_BYTES, Node
from planner.layout import Strategy, elements, owned_by_all
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of


def summary(plan: Plan | str | Path, machine: topologies.Machine | None = None) -> Summary:
    """Return what a plan (or plan.json) comes to; with a machine also where the time of computing goes.

    Raises a PlanError for what is no plan.

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
            if tensor.role == "weight" and tensor.init is not None:
                lying = (self._plan.layouts[state] for state in self._states.get(name, ()))
                key = group_of(name), tensor.shape, tensor.dtype, self._plan.layouts[name], *lying
                groups.setdefault((*key, self._engines.megatron(name), self._engines.fsdp(name)), []).append(name)
                alike[group_of(name)].append(name)
        yield from (self._parameter_group(names, alike[group_of(names[0])]) for names in groups.values())

    def _parameter_group(self, names: Sequence[str], every: Sequence[str]) -> ParameterGroup:
        """Return those of `every` corresponding parameter that lie alike."""
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
        """Return the bytes of parameters and of their state that the worker holds which holds most of both."""
        tensors = self._plan.graph.tensors.values()
        weights = [tensor.name for tensor in tensors if tensor.role == "weight" and tensor.init is not None]
        held = self._held_bytes(weights)
        state = self._held_bytes([state for weight in weights for state in self._states.get(weight, ())])
        fullest = int((held + state).argmax())
        return int(held[fullest]), int(state[fullest])

    def _held_bytes(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the bytes of tensors that every worker holds: [workers]."""
        total = np.zeros(self._plan.workers, dtype=np.int64)
        for name in names:
            tensor = self._plan.graph.tensors[name]
            total += self._held(tensor.shape, self._plan.layouts[name]) * ITEM_BYTES[tensor.dtype]
        return total

    def _split(self, weight: str, name: str) -> str:
        """Write how a weight, or state of its shape, is split, in the weight's words."""
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
                phase = "backward"  # gradients are added up behind the last node that makes one
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
        """Yield why bytes move, most first."""
        for (kind, layers), nbytes in bytes_by_cause(self._moved, self._words).most_common():
            yield Cause(kind, layers, nbytes)


def _states_by_weight(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """Return the optimizer's state of every weight: what the node that updates it updates besides."""
    updates, tensors = {new: old for old, new in plan.graph.updates.items()}, plan.graph.tensors
    states: dict[str, tuple[str, ...]] = {}
    for node in plan.graph.nodes:
        updated = [updates[name] for name in node.outputs if name in updates]
        for weight in (name for name in updated if tensors[name].role == "weight"):
            states[weight] = tuple(name for name in updated if tensors[name].role == "state")
    return states


def _searched_for(plan: Plan) -> Iterator[Spent]:
    """Yield where seconds go on the machine that a plan was searched for, if it was for little time."""
    if (of_search := plan.search.predicted) is not None:
        yield Spent("computing", of_search.compute_s)
        yield from _communication(of_search.level_s, of_search.latency_s)


def _spent(prediction: PredictedSeconds | None, operators: Sequence[OperatorGroup]) -> Iterator[Spent]:
    """Yield where predicted seconds go, by part of the network and level of the machine."""
    if prediction is not None:
        computing = defaultdict[str, float](float)
        for group in operators:
            if group.seconds is not None:
                computing[group.layer] += group.seconds
        for layer in sorted(computing, key=lambda layer: -computing[layer]):
            yield Spent(f"computing {layer}", computing[layer])
        yield from _communication(prediction.level_s, prediction.latency_s)


def _communication(level_s: Sequence[float], latency_s: float) -> Iterator[Spent]:
    for level, seconds in enumerate(level_s, start=1):
        yield Spent(f"messages across level {level}", seconds)
    yield Spent("latencies", latency_s)
