"""Facts of a graph that reports name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from planner.graph.infer import describe
from planner.graph.ir import FLOATING, Graph, Node, Tensor

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
"""What memory holds tensors of a role for, as reports name it."""


def batch_size(graph: Graph) -> int | None:
    """Return the samples of one iteration, the least leading extent of what the data set provides; None without any.

    A sequence model's labels are flat, one for every token, so theirs is not the number of samples. Micro-batches hold
    rows of one batch.
    """
    rows: Counter[str] = Counter()
    for tensor in _data(graph):
        rows[_source(tensor)] += tensor.shape[0]
    return min(rows.values(), default=None)


def classification(graph: Graph) -> tuple[str, Tensor] | None:
    """Return the logits' name and the labels of a graph that classifies samples; None for any other graph."""
    logits, labels = graph.metrics.get("logits"), graph.metrics.get("labels")
    if logits is None or labels is None:
        return None
    init = graph.tensors[labels].init
    shapes = graph.tensors[logits].shape, graph.tensors[labels].shape
    fits = init is not None and init.kind == "data" and len(shapes[0]) == 2 and shapes[1] == shapes[0][:1]
    return (logits, graph.tensors[labels]) if fits else None


def micro_batches(graph: Graph) -> int:
    """Return into how many micro-batches the batch is cut; 1 where it is not."""
    return max(Counter(map(_source, _data(graph))).values(), default=1)


def recomputed(graph: Graph) -> int:
    """Return how many nodes compute again, for the backward pass, what the forward pass did not keep."""
    return sum(is_recomputed(graph, node) for node in graph.nodes)


def is_recomputed(graph: Graph, node: Node) -> bool:
    """Whether a node computes again what its forward node computed."""
    return node.forward is not None and graph.tensors[node.outputs[0]].role == "activation"


def nodes_taking_inputs(graph: Graph) -> frozenset[str]:
    """Return the nodes that only take elements of inputs: of the data, or of what the backward pass starts from."""
    inputs = {tensor.name for tensor in graph.tensors.values() if tensor.role == "input" and tensor.init is not None}
    takers = (node for node in graph.nodes if node.inputs and inputs.issuperset(node.inputs))
    return frozenset(node.name for node in takers if describe(node, graph.tensors).moves_elements)


def weight_dtype(graph: Graph) -> str | None:
    """Return the dtype of most weights; None without any."""
    return _most(tensor for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init is not None)


def precision(graph: Graph) -> str:
    """Return the dtype that most activations have, and that of weights where it is another."""
    computed = _most(tensor for tensor in graph.tensors.values() if tensor.role == "activation")
    kept = weight_dtype(graph)
    return f"{computed}, weights {kept}" if computed and kept and computed != kept else computed or kept or "none"


def _most(tensors: Iterable[Tensor]) -> str | None:
    counts = Counter(tensor.dtype for tensor in tensors if tensor.dtype in FLOATING)
    return counts.most_common(1)[0][0] if counts else None


def contents(graph: Graph) -> Mapping[str, str]:
    """Return what memory holds each tensor for."""
    return {name: CONTENTS[tensor.role] for name, tensor in graph.tensors.items()}


def no_data_parallelism(graph: Graph, workers: int) -> str:
    """Say why the samples of one iteration cannot be split over so many workers; nothing where they can."""
    samples = batch_size(graph) or 0
    if samples >= workers * micro_batches(graph):
        return ""
    return "fewer samples than workers" if samples else "no samples to split"


def phases(graph: Graph) -> Mapping[str, str]:
    """Return each node's phase: "forward" up to the first node of the backward pass, "update" behind the last one.

    Of several micro-batches, all that follows the first forward pass counts as "backward".
    """
    backward = [at for at, node in enumerate(graph.nodes) if node.forward is not None]
    first, last = (backward[0], backward[-1]) if backward else (len(graph.nodes), len(graph.nodes))
    return {
        node.name: "forward" if at < first else "backward" if at <= last else "update"
        for at, node in enumerate(graph.nodes)
    }


def _data(graph: Graph) -> list[Tensor]:
    """Return what the data set provides, or all inputs where it provides nothing; scalars are left out."""
    inputs = [tensor for tensor in graph.tensors.values() if tensor.role == "input" and tensor.shape]
    return [tensor for tensor in inputs if tensor.init is not None and tensor.init.kind == "data"] or inputs


def _source(tensor: Tensor) -> str:
    return tensor.name if tensor.init is None else tensor.init.source or tensor.name
