"""Facts about a graph that reports show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

from planner.graph.infer import describe
from planner.graph.ir import FLOATING, Graph, Node, Tensor, depending_on_samples
from planner.graph.micro_batches import BEFORE, FORWARD, UPDATE, phases_of_nodes
from tdl.traits import traits_of

TOKENS_RANK = 2
"""Number of dimensions of a tensor of tokens: samples and positions."""

CONTENTS = {
    "input": "inputs",
    "weight": "weights",
    "state": "optimizer state",
    "buffer": "buffers",
    "constant": "buffers",
    "activation": "activations",
    "gradient": "gradients",
    "loss": "activations",
}
"""Names of memory contents in reports, by tensor role."""


def batch_size(graph: Graph) -> int | None:
    """Return the samples per iteration: the smallest leading extent of the data set's tensors; None without any.

    A sequence model's labels are flat, one per token, so their extent is not the number of samples.
    """
    rows = [graph.micro_batches * tensor.shape[0] for tensor in _data(graph)]
    return min(rows, default=None)


def amounts(graph: Graph) -> Mapping[str, int]:
    """Return the samples and tokens per iteration; tokens only if there are two-dimensional integer inputs."""
    tokens = [prod(tensor.shape) for tensor in _data(graph) if tensor.dtype == "int32" and len(tensor.shape) == 2]
    counts = {"samples": batch_size(graph), "tokens": max(tokens, default=0) * graph.micro_batches}
    return {name: amount for name, amount in counts.items() if amount}


def copies_of_weights(graph: Graph) -> frozenset[str]:
    """Return the copies of weights in another dtype."""
    converting = (node for node in graph.nodes if traits_of(describe(node, graph.tensors)).converts)
    return frozenset(node.outputs[0] for node in converting if graph.tensors[node.inputs[0]].role == "weight")


def masters_of_weights(graph: Graph) -> frozenset[str]:
    """Return the weights that both passes read only as copies in another dtype, and their updated values."""
    copies, phase = copies_of_weights(graph), phases(graph)
    copied = {name for node in graph.nodes if not copies.isdisjoint(node.outputs) for name in node.inputs}
    others = (node for node in graph.nodes if copies.isdisjoint(node.outputs) and phase[node.name] != UPDATE)
    masters = copied.difference(*(node.inputs for node in others))
    return frozenset(masters | {graph.updates[name] for name in masters if name in graph.updates})


def classification(graph: Graph) -> tuple[str, Tensor] | None:
    """Return the logits' name and the labels of a graph that classifies samples; None for any other graph."""
    logits, labels = graph.metrics.get("logits"), graph.metrics.get("labels")
    if logits is None or labels is None:
        return None
    init = graph.tensors[labels].init
    shapes = graph.tensors[logits].shape, graph.tensors[labels].shape
    fits = init is not None and init.kind == "data" and len(shapes[0]) >= 2 and shapes[1] == shapes[0][:-1]
    return (logits, graph.tensors[labels]) if fits else None


def recomputed(graph: Graph) -> int:
    """Return the number of nodes that recompute activations for the backward pass."""
    return sum(is_recomputed(graph, node) for node in graph.nodes)


def is_recomputed(graph: Graph, node: Node) -> bool:
    """Return True if a node recomputes its forward node, to which it is tied like a timestep."""
    return node.forward is not None and node.unroll is not None and graph.tensors[node.outputs[0]].role == "activation"


def nodes_of_replicas(graph: Graph) -> frozenset[str]:
    """Return the nodes that all replicas run identically: they depend on no sample, or only move elements of inputs.

    Inputs are the data and the seed of the backward pass.
    """
    dependent = depending_on_samples(graph.tensors, graph.nodes)
    alike = (node.name for node in graph.nodes if dependent.isdisjoint((*node.inputs, *node.outputs)))
    inputs = {tensor.name for tensor in graph.tensors.values() if tensor.role == "input" and tensor.init is not None}
    takers = (node for node in graph.nodes if node.inputs and inputs.issuperset(node.inputs))
    return frozenset(alike).union(node.name for node in takers if describe(node, graph.tensors).moves_elements)


def sequence_length(graph: Graph) -> int | None:
    """Return the tokens per sample if there are two-dimensional integer inputs; else None."""
    inputs = (tensor for tensor in graph.tensors.values() if tensor.role == "input" and tensor.dtype == "int32")
    return max((tensor.shape[1] for tensor in inputs if len(tensor.shape) == TOKENS_RANK), default=None)


def weight_dtype(graph: Graph) -> str | None:
    """Return the dtype of most weights; None without any."""
    return _most(tensor for tensor in graph.tensors.values() if tensor.is_parameter)


def precision(graph: Graph) -> str:
    """Return the dtype of most activations, and that of weights if it differs."""
    computed = _most(tensor for tensor in graph.tensors.values() if tensor.role == "activation")
    kept = weight_dtype(graph)
    return f"{computed}, weights {kept}" if computed and kept and computed != kept else computed or kept or "none"


def _most(tensors: Iterable[Tensor]) -> str | None:
    counts = Counter(tensor.dtype for tensor in tensors if tensor.dtype in FLOATING)
    return counts.most_common(1)[0][0] if counts else None


def contents(graph: Graph) -> Mapping[str, str]:
    """Return what memory holds each tensor for, by name."""
    return {name: CONTENTS[tensor.role] for name, tensor in graph.tensors.items()}


def no_data_parallelism(graph: Graph, workers: int) -> str:
    """Return why the samples of one iteration cannot be split over `workers`; an empty string if they can."""
    samples = batch_size(graph) or 0
    if samples >= workers * graph.micro_batches:
        return ""
    return "fewer samples than workers" if samples else "no samples to split"


def phases(graph: Graph) -> Mapping[str, str]:
    """Return each node's phase: "forward" before the first backward node, "update" after the last one.

    Nodes that run once before several micro-batches belong to "forward" too.
    """
    if graph.micro_batches > 1:
        return {name: FORWARD if phase == BEFORE else phase for name, phase in phases_of_nodes(graph).items()}
    backward = [at for at, node in enumerate(graph.nodes) if node.forward is not None]
    first, last = (backward[0], backward[-1]) if backward else (len(graph.nodes), len(graph.nodes))
    return {
        node.name: "forward" if at < first else "backward" if at <= last else "update"
        for at, node in enumerate(graph.nodes)
    }


def _data(graph: Graph) -> list[Tensor]:
    """Return the tensors that the data set provides, or all inputs if it provides none; without scalars."""
    inputs = [tensor for tensor in graph.tensors.values() if tensor.role == "input" and tensor.shape]
    return [tensor for tensor in inputs if tensor.init is not None and tensor.init.kind == "data"] or inputs
