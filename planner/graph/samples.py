"""Which tensors depend on the samples of a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import tdl
from planner.graph.ir import Node, Tensor

CONSTANT = ("zeros", "ones")


def depending_on_samples(tensors: Mapping[str, Tensor], nodes: Iterable[Node], sums: Collection[str] = ()) -> set[str]:
    """Return inputs that are not constant, and everything that nodes, in executable order, compute from them.

    Tensors that depend on samples only through the `sums` over all of them are excluded, and so are the sums. A node
    that draws random numbers for the gradient of a sample's element depends on the sample, regardless of the arriving
    gradient.
    """
    names = {name for name, tensor in tensors.items() if holds_samples(tensor)}
    drawing: set[str] = set()
    for node in nodes:
        if not names.isdisjoint(node.inputs) or node.forward in drawing:
            names.update(name for name in node.outputs if name not in sums)
            if "row" in tdl.catalog[node.op].random_keys:
                drawing.add(node.name)
    return names


def holds_samples(tensor: Tensor) -> bool:
    """Return True if a tensor's rows are samples of the batch or of a micro-batch."""
    init = tensor.init
    return tensor.role == "input" and init is not None and init.kind not in CONSTANT and bool(tensor.shape)
