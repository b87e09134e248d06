"""What a trace changes in place, written as new tensors that later readers read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Graph, Node

from planner.errors import GraphError
from planner.pytorch.graphs import example, packet, where
from planner.pytorch.private import schema_of

aten = torch.ops.aten

COUNTER = "num_batches_tracked"
"""What batch norm counts in and never reads."""


def out_of_place(graph: Graph, kept: Iterable[str]) -> None:
    """Let what reads a tensor after it was changed read the result, through the views that it reads it through.

    `kept` are the placeholders of parameters and buffers, which must not change. Raises a GraphError, with the line,
    for them, and for views of which nobody can tell where their elements lie.
    """
    placeholders = set(kept)
    for node in list(graph.nodes):
        if changes_first(node):
            _replace(node, placeholders)


def changes_first(node: Node) -> bool:
    """Return True if a node's operator changes its first operand in place."""
    name = packet(node)
    return name.endswith("_") and not name.endswith("__") and node.op == "call_function"


def _replace(node: Node, kept: set[str]) -> None:
    """Write the tensor that a changed one is a view of anew, and read again every view of it."""
    changed = node.args[0]
    assert isinstance(changed, Node)
    path = ancestry(changed)
    root = path[0]
    _refuse_kept(node, root, kept)
    aliases = _aliases(root, node)
    readers = {alias: [user for user in alias.users if user > node] for alias in aliases}
    for user in readers.pop(changed):
        user.replace_input_with(changed, node)
    if not any(readers.values()):
        return
    _refuse_copies(node, aliases)
    with node.graph.inserting_before(node.next):
        whole = _written(node, path)
        again = {alias: _read(node, whole, ancestry(alias)) for alias, users in readers.items() if users}
    for alias, view in again.items():
        for user in readers[alias]:
            user.replace_input_with(alias, view)


def _refuse_kept(node: Node, root: Node, kept: set[str]) -> None:
    if root.op == "placeholder" and str(root.target) in kept and not str(root.target).endswith(COUNTER):
        raise GraphError(
            f"{where(node)}: {packet(node)} changes a parameter or buffer of the module; only batch norm's running "
            "statistics are kept from one step to the next"
        )


def _refuse_copies(node: Node, aliases: Iterable[Node]) -> None:
    views = [alias for alias in aliases if _shares_memory(alias)]
    if strange := [view for view in views if packet(view) not in WRITTEN or _may_be_copy(view)]:
        raise GraphError(
            f"{where(node)}: {node.target} changes what is read through {packet(strange[0])} as well: copy it first"
        )


def _written(node: Node, path: list[Node]) -> Node:
    """Return the root of a view with its new content, `node`; `path` leads from the root to the view."""
    content = node
    for parent, view in reversed(list(pairwise(path))):
        content = _added(node, parent, *WRITTEN[packet(view)](parent, view, content))
    return content


def _read(node: Node, root: Node, path: list[Node]) -> Node:
    """Return a view of another root."""
    for view in path[1:]:
        root = _added(node, view, view.target, (root, *view.args[1:]), view.kwargs)
    return root


def _added(node: Node, like: Node, target: Any, arguments: tuple[Any, ...], named: Any = None) -> Node:
    added = node.graph.call_function(target, arguments, named)
    added.meta = {**node.meta, "val": example(like)}
    return added


Written = Callable[[Node, Node, Node], tuple[Any, tuple[Any, ...]]]
"""From a tensor, a view of it and the view's new content to the operator and arguments that write it."""


def _as_was(parent: Node, view: Node, content: Node) -> tuple[Any, tuple[Any, ...]]:
    """Write a view that has all elements in their order."""
    return aten.view.default, (content, list(example(parent).shape))


def _scattered(target: Any) -> Written:
    """Write a view that has some of the elements."""
    return lambda parent, view, content: (target, (parent, content, *view.args[1:]))


def _back(parent: Node, view: Node, content: Node) -> tuple[Any, tuple[Any, ...]]:
    """Write a view whose dimensions are in another order."""
    order = [dim % len(view.args[1]) for dim in view.args[1]]  # type: ignore[union-attr, arg-type, operator]
    return aten.permute.default, (content, [order.index(dim) for dim in range(len(order))])


WRITTEN: Mapping[str, Written] = {
    **dict.fromkeys(
        ("view", "reshape", "flatten", "unsqueeze", "squeeze", "_unsafe_view", "alias", "contiguous", "to"), _as_was
    ),
    "slice": _scattered(aten.slice_scatter.default),
    "select": _scattered(aten.select_scatter.default),
    **dict.fromkeys(("transpose", "t"), lambda parent, view, content: (view.target, (content, *view.args[1:]))),
    "permute": _back,
}
"""By the operator that makes the view."""


def ancestry(node: Node) -> list[Node]:
    """Return the nodes from the one that owns the memory to this view of it."""
    path = [node]
    while _shares_memory(path[-1]) and path[-1].all_input_nodes:
        path.append(path[-1].all_input_nodes[0])
    return path[::-1]


def _aliases(root: Node, until: Node) -> set[Node]:
    """Return the nodes before one whose results are in the memory of a root."""
    aliases, waiting = {root}, [root]
    while waiting:
        alias = waiting.pop()
        users = [user for user in alias.users if user < until and _shares_memory(user)]
        views = {user for user in users if user.all_input_nodes[0] is alias} - aliases
        waiting += views
        aliases |= views
    return aliases


def _shares_memory(node: Node) -> bool:
    """Return True if a node's result may be a view of its first operand."""
    name = packet(node)
    if node.target is operator.getitem:
        return _returns_views(node.args[0])  # type: ignore[arg-type]
    if name == "to":
        return bool(example(node).dtype == example(node.all_input_nodes[0]).dtype)
    if name == "contiguous":
        return bool(example(node.all_input_nodes[0]).is_contiguous())
    return name in COPIES_OR_VIEWS or _returns_views(node)


COPIES_OR_VIEWS = ("reshape", "flatten")


def _may_be_copy(node: Node) -> bool:
    return packet(node) in COPIES_OR_VIEWS and not example(node.all_input_nodes[0]).is_contiguous()


def _returns_views(node: Node) -> bool:
    schema = schema_of(node.target)
    aliases = [] if schema is None else [result.alias_info for result in schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)
