"""Gradient accumulation: the pass of one micro-batch, forward and backward, repeated for every one.

Weights, and what depends on no sample (copies of weights in another dtype), are shared. A copy of a node or tensor has
the number of its micro-batch appended, as in "fc1@2". Micro-batch follows micro-batch, so that the activations of one
are alive at a time. A weight's gradient is the sum over all of them of whatever was summed in one: operands that are
alike come together in one sum, which accumulates where it is computed and is reduced once (`accumulation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count, takewhile

from planner.graph.accumulation import accumulates
from planner.graph.build import MOST_NODES, GraphBuilder, too_many_nodes
from planner.graph.dropout import of_rows
from planner.graph.ir import Init, Node, Tensor, renamed
from planner.graph.samples import depending_on_samples


def unroll_micro_batches(
    builder: GraphBuilder, count: int, gradients: Mapping[str, str], metrics: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Repeat the builder's graph for `count` micro-batches; return the gradients' sums, and the metrics.

    The loss is the mean of the micro-batches'; other metrics are the first one's. `gradients` must be those of the mean
    loss, that is, of a micro-batch's divided by `count`.
    """
    dependent = depending_on_samples(builder.tensors, builder.nodes)
    sums = _Sums(builder, dependent, count)
    for tensor in (metrics["loss"], *gradients.values()):
        sums.take_apart(tensor)
    if len(builder.nodes) * count > MOST_NODES:
        raise too_many_nodes(f"{count} micro-batches")
    _repeat(builder, dependent, count)
    totals = {weight: sums.total(gradient, gradient, "gradient") for weight, gradient in gradients.items()}
    total = sums.total(metrics["loss"], f"{metrics['loss']}.sum", "activation")
    loss = builder.apply("scale", total, name=metrics["loss"], role="loss", factor=1 / count)
    first = {metric: _copy_name(name, 0) if name in dependent else name for metric, name in metrics.items()}
    return totals, {**first, "loss": loss}


def copies_of(builder: GraphBuilder, name: str) -> list[str]:
    """Return what the micro-batches' copies of a tensor are called; the tensor itself where there are none."""
    copies = (_copy_name(name, number) for number in count())
    return [name] if name in builder.tensors else list(takewhile(builder.tensors.__contains__, copies))


def _copy_name(name: str, number: int) -> str:
    return f"{name}@{number}"


def _repeat(builder: GraphBuilder, dependent: set[str], count: int) -> None:
    """Replace the builder's graph by what is shared, followed by the micro-batches' copies of the rest."""
    shared = [node for node in builder.nodes if dependent.isdisjoint(node.outputs)]
    repeated = [node for node in builder.nodes if not dependent.isdisjoint(node.outputs)]
    names = dependent.union(node.name for node in repeated)
    timesteps = 1 + max((node.unroll[1] for node in repeated if node.unroll), default=0)
    tensors = {name: tensor for name, tensor in builder.tensors.items() if name not in dependent}
    nodes = shared
    for number in range(count):
        copies = {name: _copy_name(name, number) for name in names}
        for tensor in (tensor for tensor in builder.tensors.values() if tensor.name in dependent):
            tensors[copies[tensor.name]] = _tensor_copy(tensor, number)
        for node in repeated:
            rows = next(iter(builder.shape(node.outputs[0])), 1)
            copy = _node_copy(node, copies, number * timesteps)
            nodes.append(replace(copy, attrs=of_rows(node, number * rows)))
    builder.rebuild(tensors, nodes)


def _tensor_copy(tensor: Tensor, number: int) -> Tensor:
    role = "activation" if tensor.role == "loss" else tensor.role
    init: Init | None = tensor.init
    if init is not None:
        init = replace(init, source=tensor.name, row=number * tensor.shape[0])
    return replace(tensor, name=_copy_name(tensor.name, number), role=role, init=init)


def _node_copy(node: Node, copies: Mapping[str, str], timestep: int) -> Node:
    """Return a micro-batch's copy, whose timesteps begin at `timestep`."""
    cell, step = node.unroll or (node.name, 0)
    forward = node.forward and copies.get(node.forward, node.forward)
    return replace(renamed(node, copies), name=copies[node.name], forward=forward, unroll=(cell, step + timestep))


class _Sums:
    """Sums over all micro-batches, each made once; `own` are the tensors that every one has of its own."""

    def __init__(self, builder: GraphBuilder, own: set[str], count: int) -> None:
        self._builder, self._own, self._count = builder, own, count
        self._producers = {output: node for node in builder.nodes for output in node.outputs}
        self._terms: dict[str, list[tuple[str, ...]]] = {}
        self._made: dict[str, str] = {}

    def take_apart(self, tensor: str) -> None:
        """Note what is to be summed of a tensor, in groups that are alike: what a micro-batch sums for it, or itself.

        A sum that nobody else reads goes: its terms are summed with those of the other micro-batches.
        """
        if tensor not in self._terms:
            self._terms[tensor] = self._groups(tensor)

    def total(self, tensor: str, name: str, role: str) -> str:
        """Add the nodes that sum a tensor over all micro-batches; return the sum's name, `name` if that is free."""
        if tensor not in self._made:
            groups, name = self._terms[tensor], name if tensor in self._own else f"{name}.sum"
            parts = [f"{name}.{number}" for number in range(len(groups))] if len(groups) > 1 else [name]
            add = partial(self._builder.apply, "add_n", role=role)
            sums = [add(*self._copies(group), name=part) for part, group in zip(parts, groups, strict=True)]
            self._made[tensor] = sums[0] if len(sums) == 1 else add(*sums, name=name)
        return self._made[tensor]

    def _groups(self, tensor: str) -> list[tuple[str, ...]]:
        producer = self._producers.get(tensor)
        readers = sum(tensor in node.inputs for node in self._builder.nodes)
        if producer is None or readers or not accumulates(producer, self._builder.tensors) or tensor not in self._own:
            return [(tensor,)]
        self._builder.nodes.remove(producer)
        del self._builder.tensors[tensor]
        groups: dict[str, list[str]] = {}
        for term in producer.inputs:
            groups.setdefault(self._likeness(term), []).append(term)
        return [tuple(group) for group in groups.values()]

    def _copies(self, terms: tuple[str, ...]) -> tuple[str, ...]:
        numbers = range(self._count)
        return tuple(_copy_name(term, n) if term in self._own else term for n in numbers for term in terms)

    def _likeness(self, tensor: str) -> str:
        """Say what results have in common that can be accumulated where they are computed."""
        producer = self._producers.get(tensor)
        if producer is None:
            return tensor
        return f"{producer.op} {producer.attrs} {[self._builder.shape(name) for name in producer.inputs]}"
