"""Facts of a graph that reports name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planner.graph.ir import Graph


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


def phases(graph: Graph) -> Mapping[str, str]:
    """Return each node's phase: "forward" up to the first node of the backward pass, "update" behind the last one."""
    backward = [at for at, node in enumerate(graph.nodes) if node.forward is not None]
    first, last = (backward[0], backward[-1]) if backward else (len(graph.nodes), len(graph.nodes))
    return {
        node.name: "forward" if at < first else "backward" if at <= last else "update"
        for at, node in enumerate(graph.nodes)
    }
