"""What of a graph depends on the samples of a batch, and what is the same whatever they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.graph.ir import Node, Tensor

CONSTANT = ("zeros", "ones")


def depending_on_samples(tensors: Mapping[str, Tensor], nodes: Iterable[Node]) -> set[str]:
    """Return the inputs that are not constant, and all that nodes, in an order in which they can run, make of them."""
    found = {name for name, tensor in tensors.items() if _holds_samples(tensor)}
    for node in nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _holds_samples(tensor: Tensor) -> bool:
    init = tensor.init
    return tensor.role == "input" and init is not None and init.kind not in CONSTANT and bool(tensor.shape)
