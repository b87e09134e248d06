"""Decompose unsupported operators by PyTorch's own decompositions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.errors import GraphError
from planner.pytorch.capture.functionalization import out_of_place
from planner.pytorch.nodes import example, extension, leaves, packet
from planner.pytorch.private import DECOMPOSITIONS, OpOverload, fake_mode_of, is_composite
from planner.pytorch.translate.call import CONVERTERS
from planner.pytorch.translate.compositions import WRITTEN_OUT

LOGGER = logging.getLogger(__name__)

REFUSED = "refused"
"""Key of a node's metadata: why the operator that it is a part of was refused."""

PART_OF = "part of"
"""Key of a node's metadata: the operator that it was last decomposed from."""

PARTLY_CONVERTED = (
    "clamp", "clamp_max", "clamp_min", "embedding", "index_put", "scatter", "scatter_reduce",
)  # fmt: skip
"""Operators that are composed once where their converters refuse them; some are composed of themselves."""

OTHER_GRADIENTS = (
    "_pdist_forward", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "alpha_dropout", "aminmax",
    "avg_pool3d", "cdist", "celu", "conv_transpose3d", "cumprod", "diagonal", "diagonal_scatter", "embedding",
    "embedding_renorm", "exp2", "fmax", "fmin", "logit", "max_pool2d_with_indices", "max_pool3d", "max_unpool2d",
    "max_unpool3d", "multi_margin_loss", "pdist", "prod", "rrelu", "scatter_reduce", "sinc", "softshrink",
    "special_entr", "special_log_ndtr", "special_xlog1py", "std_mean", "var_mean", "xlogy",
)  # fmt: skip
"""Operators whose decompositions have other gradients than PyTorch's operators."""


NORMALIZED = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "native_layer_norm")
"""Operators whose returned statistics have no gradient."""


def decompose(module: GraphModule, node: Node, why: str) -> bool:
    """Replace a refused node by PyTorch's decomposition; return False if there is none.

    A decomposition with other dtypes does not count.
    """
    part = _part(node)
    if part is None or any(_is_again(inner, node) or _is_primitive(inner) for inner in part.graph.nodes):
        return False
    results = map(example, tree_flatten(part.graph.output_node().args[0])[0])
    if dtypes(results) != dtypes(tree_flatten(example(node))[0]):
        return False
    node.meta.setdefault(REFUSED, why)
    node.meta[PART_OF] = node.target
    _read_instead(node, copied(module, node, part, node.all_input_nodes))
    return True


def _is_again(inner: Node, node: Node) -> bool:
    """Return True for the operator that a node decomposes into, unless that is its first composition."""
    is_first = packet(node) in PARTLY_CONVERTED and node.meta.get(PART_OF) is not node.target
    return inner.target is node.target and not is_first


def dtypes(results: Iterable[Any]) -> list[torch.dtype | None]:
    """Return the dtypes of results; None for anything that is not a tensor."""
    return [getattr(result, "dtype", None) for result in results]


def _is_primitive(node: Node) -> bool:
    """Return True for an operator of PyTorch's compiler, which has no gradient there and no converter here."""
    return packet(node).startswith("prims::") and packet(node) not in CONVERTERS


def copied(module: GraphModule, node: Node, part: GraphModule, operands: Sequence[Node]) -> Any:
    """Copy a graph's nodes to before a node, with the node's line; return the graph's results."""
    before = set(module.graph.nodes)
    results = inserted(module, node, part, operands)
    for added in set(module.graph.nodes) - before:
        added.meta = {**node.meta, "val": added.meta.get("val")}
    return results


def inserted(module: GraphModule, node: Node, part: GraphModule, operands: Sequence[object]) -> Any:
    """Copy a graph's nodes before a node as they are; return what the graph returns."""
    inputs = [inner for inner in part.graph.nodes if inner.op == "placeholder"]
    for inner in part.graph.nodes:
        if inner.op == "get_attr":
            name = f"{node.name}_{inner.target}"
            module.register_buffer(name, getattr(part, str(inner.target)), persistent=False)
            inner.target = name
    with module.graph.inserting_before(node):
        return module.graph.graph_copy(part.graph, dict(zip(inputs, operands, strict=True)))  # type: ignore[arg-type]


def _part(node: Node) -> GraphModule | None:
    """Return the graph of a node's decomposition; None if there is none."""
    parts = (_made_by(function, node) for function in _decompositions(node))
    return next((part for part in parts if part is not None), None)


def _made_by(function: Callable[..., Any], node: Node) -> GraphModule | None:
    """Return the graph of a function of a node's arguments; None if the function does not accept them."""
    arguments, spec = tree_flatten((node.args, node.kwargs))
    operands = node.all_input_nodes

    def run(*tensors: Any) -> Any:
        values = dict(zip(operands, tensors, strict=True))
        args, named = tree_unflatten([values.get(a, a) if isinstance(a, Node) else a for a in arguments], spec)
        return function(*(list(a) if isinstance(a, list) else a for a in args), **named)  # some change their lists

    examples = [example(operand) for operand in operands]
    with fake_mode_of([*examples, *leaves(example(node))]), torch.no_grad():
        # Nodes may share an example.
        apart = [value.detach() if isinstance(value, torch.Tensor) else value for value in examples]
        try:
            part = make_fx(run)(*apart)
        except Exception as error:
            # PyTorch's functions raise arbitrary exceptions for operands that they do not support.
            LOGGER.debug("%s has no decomposition here", node.target, exc_info=error)
            return None
        try:
            out_of_place(part.graph, ())
        except GraphError:  # it writes into its results
            return None
    return part


def _decompositions(node: Node) -> list[Callable[..., Any]]:
    """Return the functions that an operator can be decomposed by, best first."""
    target = node.target
    if not isinstance(target, OpOverload):
        return []
    name = packet(node).removesuffix("_")
    written_out = {**WRITTEN_OUT, **extension().compositions}
    if name in written_out and (name not in CONVERTERS or name in PARTLY_CONVERTED):
        return [written_out[name]]
    if name in OTHER_GRADIENTS:
        return []
    functions = [DECOMPOSITIONS[target]] if target in DECOMPOSITIONS else []
    functions = [*functions, target] if is_composite(target) else functions
    return [partial(_first_trained, function) for function in functions] if name in NORMALIZED else functions


def _first_trained(function: Callable[..., Sequence[torch.Tensor]], *args: Any, **named: Any) -> list[torch.Tensor]:
    """Return a function's results, with gradients only for the first."""
    first, *others = function(*args, **named)
    return [first, *(other.detach() for other in others)]


def _read_instead(node: Node, results: Any) -> None:
    """Let readers of a node read its replacements."""
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            user.graph.erase_node(user)
    node.graph.erase_node(node)
