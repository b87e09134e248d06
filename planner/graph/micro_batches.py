"""Micro-batches: a graph describes one of them, and names the tensors that are summed over all.

Weight gradients and the loss are summed over the micro-batches before anything reads them (`accumulated`). Nodes
between a sample and such a sum run for every micro-batch: in the phase forward, and in the phase backward from the
first backward node on. Nodes that these need and no sample affects, such as casts of weights, run once before; nodes
that read the sums run once after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import tdl
from planner.graph.build import GraphBuilder
from planner.graph.infer import describe
from planner.graph.ir import FLOATING, Graph, Node, Tensor, depending_on_samples, holds_samples
from planner.grouping import grouped

# Terms that are summed before they move: the terms of a gradient, and of any sum that is their only reader.
#
# The node that reads terms takes them as each worker computed them, so that only the sum is reduced. Examples are
# the gradients of a weight used several times (an embedding that is also the output layer, timesteps, micro-
# batches), and tensors that become a weight's gradient after the sum over samples (a table of positions).


def operands_as_terms(graph: Graph) -> Mapping[str, frozenset[int]]:
    """Return the nodes that may read terms under any placements, each with the operands that are terms, by name.

    Such a node either adds up its operands, or ends the backward pass (only updates read its result) with one
    floating-point operand, in which it is linear. Each of these operands is a sum, or computed from terms in turn, and
    has no other reader.
    """
    readers, operands = _readers(graph), dict[str, frozenset[int]]()
    summed: set[str] = set()
    for node in graph.nodes:
        description = describe(node, graph.tensors)
        numbers = frozenset(n for n, name in enumerate(node.inputs) if graph.tensors[name].dtype in FLOATING)
        terms = {node.inputs[n] for n in numbers if len(readers[node.inputs[n]]) == 1}
        adds = description.adds_operands or (len(numbers) == 1 and _ends_backward_pass(node, readers))
        if adds and terms and len(terms) == len(numbers) and terms <= summed and description.linear(numbers):
            operands[node.name] = numbers
            summed.update(node.outputs)
        outputs = zip(node.outputs, description.outputs, strict=True)
        summed.update(name for name, how in outputs if how.reducer == "Sum")
    return operands


def tensors_read_as_terms(graph: Graph) -> frozenset[str]:
    """Return the tensors read as terms."""
    operands = operands_as_terms(graph)
    return frozenset(node.inputs[n] for node in graph.nodes for n in operands.get(node.name, ()))


def accumulates(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """Return True if a node adds up any number of tensors, as `add_n` does."""
    return tdl.catalog[node.op].variadic and describe(node, tensors).adds_operands


def _readers(graph: Graph) -> Mapping[str, list[Node | None]]:
    """Return the readers of each tensor, one entry per operand; None stands for an update or a metric."""
    reads: list[tuple[str, Node | None]] = [(name, node) for node in graph.nodes for name in node.inputs]
    reads += [(name, None) for name in (*graph.updates.values(), *graph.metrics.values())]
    return grouped(reads)


def _ends_backward_pass(node: Node, readers: Mapping[str, list[Node | None]]) -> bool:
    after = [reader for name in node.outputs for reader in readers.get(name, ())]
    return node.forward is not None and all(reader is not None and reader.forward is None for reader in after)


# Micro-batches.


BEFORE, FORWARD, BACKWARD, UPDATE = PHASES = ("before", "forward", "backward", "update")
"""The phases in program order; the middle two run for every micro-batch."""

EVERY = (FORWARD, BACKWARD)


def phases_of_nodes(graph: Graph) -> dict[str, str]:
    """Return the phase of every node; without micro-batches all nodes are in "forward"."""
    if graph.micro_batches == 1:
        return dict.fromkeys((node.name for node in graph.nodes), FORWARD)
    every = _nodes_of_every_micro_batch(graph)
    backward = [at for at, node in enumerate(graph.nodes) if node.forward is not None and node.name in every]
    first = backward[0] if backward else len(graph.nodes)
    phases, needed = dict.fromkeys((node.name for node in graph.nodes), UPDATE), set[str]()
    for at, node in reversed(list(enumerate(graph.nodes))):
        if node.name in every:
            phases[node.name] = FORWARD if at < first else BACKWARD
        elif not needed.isdisjoint(node.outputs):
            phases[node.name] = BEFORE
        if phases[node.name] != UPDATE:
            needed.update(node.inputs)
    return phases


def adding_up_together(graph: Graph) -> Graph:
    """Return the graph with sums accumulated as one tensor instead of as terms in several stages."""
    sums = dict.fromkeys(graph.accumulated)
    for node in graph.nodes:
        if accumulates(node, graph.tensors) and sums.keys() >= set(node.inputs):
            sums = {name: None for name in sums if name not in node.inputs} | dict.fromkeys(node.outputs)
    return replace(graph, accumulated=tuple(sums))


def runs_of(phase: str, graph: Graph) -> int:
    """Return how often a phase runs in an iteration."""
    return graph.micro_batches if phase in EVERY else 1


def copies_stored(graph: Graph, name: str) -> int:
    """Return the number of copies of a tensor stored throughout: one per micro-batch if it holds samples."""
    return graph.micro_batches if holds_samples(graph.tensors[name]) else 1


def in_order_of_phases(nodes: Iterable[Node], phases: Mapping[str, str]) -> list[Node]:
    """Return the nodes sorted by phase."""
    return sorted(nodes, key=lambda node: PHASES.index(phases[node.name]))


def _nodes_of_every_micro_batch(graph: Graph) -> set[str]:
    """Return the nodes that run for every micro-batch.

    They compute a sum, or depend on samples or on copies other than through sums alone.
    """
    sums = set(graph.accumulated)
    tensors = depending_on_samples(graph.tensors, graph.nodes, sums)
    for node in graph.nodes:
        is_copy = node.op == "cast" and graph.tensors[node.inputs[0]].dtype == node.attrs["dtype"]
        if is_copy or not tensors.isdisjoint(node.inputs):
            tensors.update(name for name in node.outputs if name not in sums)
    every = sums | tensors
    return {node.name for node in graph.nodes if not every.isdisjoint(node.outputs)}


def accumulate(builder: GraphBuilder, gradients: Mapping[str, str], loss: str) -> tuple[dict[str, str], str]:
    """Accumulate the gradients and the loss over the builder's micro-batches; return the sums, and the mean loss.

    `gradients` must be those of the mean loss: of a micro-batch's loss divided by the number of micro-batches.
    """
    sums = _Sums(builder, (*gradients.values(), loss))
    totals = {weight: sums.total(gradient) for weight, gradient in gradients.items()}
    total, factor = sums.total(loss), 1 / builder.micro_batches
    builder.set_role(loss, "activation")
    return totals, builder.apply("scale", total, name=f"{loss}.mean", role="loss", factor=factor)


def can_add_up(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """Return True if a node can add its result to that of another micro-batch, under every split."""
    return {split.reducer for split in describe(node, tensors).strategies.values()} <= {None, "Sum"}


class _Sums:
    """Sums over all micro-batches, each created once; `wanted` are the tensors to accumulate."""

    def __init__(self, builder: GraphBuilder, wanted: Iterable[str]) -> None:
        self._builder = builder
        self._producers = {output: node for node in builder.nodes for output in node.outputs}
        read = {name for node in builder.nodes for name in node.inputs}
        self._own = depending_on_samples(builder.tensors, builder.nodes).difference(read).intersection(wanted)
        self._totals: dict[str, str] = {}

    def total(self, tensor: str) -> str:
        """Accumulate a tensor; return the name of its sum, which is its own unless another node reads the terms."""
        if tensor not in self._totals:
            total = tensor
            if not self._adds_up(tensor):
                total = self._builder.apply("clone", tensor, name=f"{tensor}.total", role="gradient")
            self._builder.accumulated.append(total)
            self._totals[tensor] = total
        return self._totals[tensor]

    def _adds_up(self, tensor: str) -> bool:
        """Return True if a tensor's node can accumulate in place, and no other node reads the terms."""
        node = self._producers.get(tensor)
        if node is None or not self._own.issuperset(node.outputs):
            return False
        return can_add_up(node, self._builder.tensors)
