"""PyTorch operators called as they are: opaque, differentiated by PyTorch's autograd.

They are added to the catalog when a graph first uses one. A node names the PyTorch operator (`target`), its non-tensor
arguments (`arguments`, in which {"tensor": n} is operand n), the PyTorch dtypes that the graph represents by others
(`given`), and the operands that have a gradient (`differentiable`).
"""

from __future__ import annotations

from typing import cast

import tdl
from planner.graph.ir import Graph
from planner.graph.rules import RULES, Backward, Gradients, materialize

CALL = "torch_call"
GRADIENT = "torch_call_backward"

OWN_NAMESPACES = ("aten", "prims")
"""Namespaces of PyTorch's own operators that compute tensors."""

OPERATORS = (
    tdl.opaque(CALL, "target", "arguments", "given", "differentiable"),
    tdl.opaque(GRADIENT, "target", "arguments", "given", "differentiable", "arriving"),
)


def calls_pytorch(graph: Graph) -> bool:
    """Return True if a graph calls PyTorch operators, forward or backward."""
    return any(node.op in (CALL, GRADIENT) for node in graph.nodes)


def others_called(graph: Graph) -> list[str]:
    """Return the operators that a graph calls and that are not PyTorch's own."""
    targets = (str(node.attrs["target"]) for node in graph.nodes if node.op in (CALL, GRADIENT))
    return [target for target in targets if target.partition(".")[0] not in OWN_NAMESPACES]


def register_called() -> None:
    """Add the operators to the catalog, with their gradient rule, unless they are there."""
    if CALL not in tdl.catalog:
        for operator in OPERATORS:
            tdl.register(operator)
        RULES[CALL] = _gradient


def _gradient(b: Backward) -> Gradients:
    """Emit one node that computes the gradients of all operands that have a gradient and need it."""
    differentiable = cast("tuple[int, ...]", b.node.attrs["differentiable"])
    wanted = tuple(operand for operand in differentiable if b.wanted[operand])
    arriving = {output: gradient for output, gradient in enumerate(b.arriving) if gradient is not None}
    if not wanted or not arriving:
        return (None,) * len(b.node.inputs)
    gradients = [materialize(b.builder, gradient, b.node.outputs[output]) for output, gradient in arriving.items()]
    outputs = b.emit_all(
        GRADIENT,
        (*b.node.inputs, *gradients),
        "gradients",
        **b.attrs("target", "arguments", "given"),
        differentiable=wanted,
        arriving=tuple(arriving),
        shapes=tuple(map(b.shape, wanted)),
        dtypes=tuple(b.builder.tensors[b.node.inputs[operand]].dtype for operand in wanted),
    )
    by_operand = dict(zip(wanted, outputs, strict=True))
    return tuple(by_operand.get(operand) for operand in range(len(b.node.inputs)))
