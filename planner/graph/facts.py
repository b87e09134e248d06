"""Facts of a graph that reports name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planner.graph.ir import Graph

CONTENTS = {
    "input": "inputs",
    "weight": "weights",
    "state": "optimizer state",
    "activation": "activations",
    "gradient": "gradients",
    "loss": "activations",
}
"""What memory holds tensors of a role for, as reports name it."""


def batch_size(graph: Graph) -> int | None:
    """Return the samples of one iteration, the least leading extent of what the data set provides; None without any.

    A sequence model's labels are flat, one for every token, so theirs is not the number of samples.
    """
    inputs = [tensor for tensor in graph.tensors.values() if tensor.role == "input" and tensor.shape]
    data = [tensor for tensor in inputs if tensor.init is not None and tensor.init.kind == "data"]
    return min((tensor.shape[0] for tensor in data or inputs), default=None)


def weight_dtype(graph: Graph) -> str | None:
    """Return the dtype of most weights; None without any."""
    counts = Counter(tensor.dtype for tensor in graph.tensors.values() if tensor.role == "weight")
    return counts.most_common(1)[0][0] if counts else None


def contents(graph: Graph) -> Mapping[str, str]:
    """Return what memory holds each tensor for."""
    return {name: CONTENTS[tensor.role] for name, tensor in graph.tensors.items()}
