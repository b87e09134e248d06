"""Operators that nothing here stands for, in place of which stands what PyTorch itself makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.functional import out_of_place
from planner.pytorch.graphs import example, packet
from planner.pytorch.operators.call import CONVERTERS
from planner.pytorch.private import DECOMPOSITIONS, OpOverload, fake_mode_of, is_composite
from planner.pytorch.written_out import WRITTEN_OUT

REFUSED = "refused"
"""What says of a node that stands for a part of an operator why that was refused."""

OTHER_GRADIENTS = ("max_unpool2d", "max_unpool3d", "pdist", "_pdist_forward")
"""Operators whose gradients are not those of what PyTorch makes of them."""


def decompose(module: GraphModule, node: Node, why: str) -> bool:
    """Put what a node's operator, refused, is made of in its place; False where PyTorch does not say.

    Nor where that is of other dtypes.
    """
    part = _part(node)
    if part is None or any(inner.target is node.target or _is_primitive(inner) for inner in part.graph.nodes):
        return False
    if _dtypes_of(part) != dtypes(tree_flatten(example(node))[0]):
        return False
    node.meta.setdefault(REFUSED, why)
    results = copied(module, node, part, node.all_input_nodes)
    _read_instead(node, results)
    return True


def _dtypes_of(part: GraphModule) -> list[torch.dtype | None]:
    results = tree_flatten(part.graph.output_node().args[0])[0]
    return dtypes(map(example, results))


def dtypes(results: Iterable[Any]) -> list[torch.dtype | None]:
    """Return the dtypes of results, None of what is no tensor."""
    return [getattr(result, "dtype", None) for result in results]


def _is_primitive(node: Node) -> bool:
    """Return True for an operator of PyTorch's compiler, which has no gradient there and none here."""
    return packet(node).startswith("prims::") and packet(node) not in CONVERTERS


def copied(module: GraphModule, node: Node, part: GraphModule, operands: Sequence[Node]) -> Any:
    """Copy a graph's nodes before a node, from whose line they come; return what the graph returns."""
    inputs = [inner for inner in part.graph.nodes if inner.op == "placeholder"]
    before = set(module.graph.nodes)
    for inner in part.graph.nodes:
        if inner.op == "get_attr":
            name = f"{node.name}_{inner.target}"
            module.register_buffer(name, getattr(part, str(inner.target)), persistent=False)
            inner.target = name
    with module.graph.inserting_before(node):
        results = module.graph.graph_copy(part.graph, dict(zip(inputs, operands, strict=True)))
    for added in set(module.graph.nodes) - before:
        added.meta = {**node.meta, "val": added.meta.get("val")}
    return results


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
        return function(*(list(a) if isinstance(a, list) else a for a in args), **named)  # which some change

    examples = [example(operand) for operand in operands]
    with fake_mode_of(examples), torch.no_grad():
        try:
            part = make_fx(run)(*examples)
            out_of_place(part.graph, ())
        except (GraphError, NotImplementedError, RuntimeError):  # made for other operands, or writes into its results
            return None
    return part


def _decomposition(node: Node) -> Callable[..., Any] | None:
    """Return the function of other operators that PyTorch has for an operator."""
    target = node.target
    if not isinstance(target, OpOverload):
        return None
    if (name := packet(node)) in WRITTEN_OUT and name not in CONVERTERS:
        return WRITTEN_OUT[name]
    if name in OTHER_GRADIENTS:
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
