"""Operators that nothing here stands for, in place of which stands what PyTorch itself makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.pytorch.functional import out_of_place
from planner.pytorch.graphs import example, leaves, packet
from planner.pytorch.private import DECOMPOSITIONS, OpOverload, fake_mode_of, is_composite
from planner.pytorch.tracing import Trace, is_parameter


def decompose(module: GraphModule, node: Node) -> bool:
    """Put what a node's operator is made of in its place; False where PyTorch does not say, or it is that operator."""
    part = _part(node)
    if part is None or any(inner.target is node.target for inner in part.graph.nodes):
        return False
    out_of_place(part.graph, ())
    inputs = [inner for inner in part.graph.nodes if inner.op == "placeholder"]
    copies = dict(zip(inputs, node.all_input_nodes, strict=True))
    with module.graph.inserting_before(node):
        for inner in part.graph.nodes:
            if inner.op == "get_attr":
                name = f"{node.name}_{inner.target}"
                module.register_buffer(name, getattr(part, str(inner.target)), persistent=False)
                inner.target = name
        before = set(module.graph.nodes)
        results = module.graph.graph_copy(part.graph, copies)
    for added in set(module.graph.nodes) - before:
        added.meta = {**node.meta, "val": added.meta.get("val")}
    _read_instead(node, results)
    return True


def _part(node: Node) -> GraphModule | None:
    """Return the graph of what a node's operator is made of."""
    function = _decomposition(node)
    if function is None:
        return None
    arguments, spec = tree_flatten((node.args, node.kwargs))
    operands = node.all_input_nodes

    def run(*tensors: Any) -> Any:
        values = dict(zip(operands, tensors, strict=True))
        args, named = tree_unflatten([values.get(a, a) if isinstance(a, Node) else a for a in arguments], spec)
        return function(*args, **named)

    examples = [example(operand) for operand in operands]
    with fake_mode_of(examples), torch.no_grad():
        try:
            return make_fx(run)(*examples)
        except (NotImplementedError, RuntimeError):  # made for other operands
            return None


def _decomposition(node: Node) -> Callable[..., Any] | None:
    """Return the function of other operators that PyTorch has for an operator."""
    target = node.target
    if not isinstance(target, OpOverload):
        return None
    if target in DECOMPOSITIONS:
        return DECOMPOSITIONS[target]
    return target if is_composite(target) else None


def _read_instead(node: Node, results: Any) -> None:
    """Let what reads a node read results instead."""
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            user.graph.erase_node(user)
    node.graph.erase_node(node)


def differentiable(trace: Trace) -> set[Node]:
    """Return the nodes through which a gradient flows to a parameter."""
    nodes, sources = set[Node](), trace.sources
    for node in trace.nodes:
        if node.op == "placeholder":
            reached = is_parameter(sources[node.name])
        else:
            reached = packet(node) != "detach" and not nodes.isdisjoint(node.all_input_nodes)
        if reached and any(isinstance(leaf, torch.Tensor) and _has_gradient(leaf) for leaf in leaves(example(node))):
            nodes.add(node)
    return nodes


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
