"""Functionalize a trace: in-place changes become new tensors, which later readers read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Graph, Node

from planner.errors import GraphError
from planner.pytorch.nodes import bound, example, leaves, packet, where
from planner.pytorch.private import schema_of

aten = torch.ops.aten

COUNTER = "num_batches_tracked"
"""Batch norm's counter, which it never reads."""


FOLLOWING = {"batch_norm": "training", "native_batch_norm": "training", "instance_norm": "use_input_stats"}
"""Operators that may change their running statistics without showing it in the trace, with the controlling flag."""


OWNER = "owner"
"""Marks a node that owns all of a state's memory, although it may be a view of what was written."""


VIEW = "view"
"""Marks a node whose result lies in an operand's memory, which its operator's schema does not declare."""


def note_views(graph: Graph) -> None:
    """Mark results that lie in the memory of operands without a declaration in the schema (meshgrid, einsum)."""
    for node in graph.nodes:
        is_new = schema_of(node.target) is None or changes_first(node) or "out" in node.kwargs
        if (
            not is_new
            and packet(node) not in FRESH
            and (_is_identity(node) or memory_of(node) & set[int]().union(*map(memory_of, node.all_input_nodes)))
        ):
            node.meta[VIEW] = True


DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
FRESH = ("lift_fresh_copy",)
"""Operators whose examples share memory although their results do not."""


def _is_identity(node: Node) -> bool:
    """Return True for a dropout that drops nothing: PyTorch returns its input."""
    return packet(node) in DROPOUTS and (not bound(node)["train"] or not bound(node)["p"])


def memory_of(node: Node) -> set[int]:
    """Return the identities of the storages of a node's results that are not sparse."""
    tensors = (leaf for leaf in leaves(example(node)) if isinstance(leaf, torch.Tensor))
    return {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}


def relaid_out_of_place(graph: Graph, states: Iterable[str] = ()) -> None:
    """Let operators that change a tensor's own strides, such as t_(), return a view, which later readers read.

    Raises GraphError, with the line, for the placeholders `states`, and for operators that change a tensor's memory.
    """
    kept = set(states)
    for node in [node for node in graph.nodes if torch.Tag.inplace_view in getattr(node.target, "tags", ())]:
        operand, name = node.all_input_nodes[0], packet(node)
        view = _overload(getattr(aten, name.removesuffix("_")), node)
        if view is None or not _aliases(view._schema) or operand.name in kept:
            raise GraphError(f"{where(node)}: {name} changes a tensor's strides: assign a view, or another tensor")
        for user in [user for user in operand.users if user > node]:
            user.replace_input_with(operand, node)
        node.target = view


def out_of_place(graph: Graph, states: Iterable[str] = ()) -> dict[Node, list[Node]]:
    """Let readers of a tensor after a change read the result, through the same views.

    Returns the contents of each placeholder in `states` that changes, in order, starting with itself. Raises
    GraphError, with the line, for views whose elements cannot be located.
    """
    sources = [node for node in graph.nodes if node.op == "placeholder" and node.name in set(states)]
    roots, contents = {node: node for node in sources}, {node: [node] for node in sources}
    for node in list(graph.nodes):
        if isinstance(out := node.kwargs.get("out"), Node):
            _copy_into(node, out)
    changing = [node for node in graph.nodes if changes_first(node)]
    for node in changing:
        whole, state = _replace(node, roots, is_last=node is changing[-1] and not roots)
        if state is not None:
            whole.meta[OWNER] = True
            roots[whole] = state
            contents[state].append(whole)
    return {state: those for state, those in contents.items() if len(those) > 1 and not _only_counts(state)}


def _only_counts(buffer: Node) -> bool:
    """Return True for batch norm's counter, which nothing reads."""
    return str(buffer.target).endswith(COUNTER) and _is_unread(buffer)


def _is_unread(node: Node) -> bool:
    return all(changes_first(user) and _is_unread(user) for user in node.users)


def _copy_into(node: Node, out: Node) -> None:
    """Let an operator that writes into a given tensor return its result, and copy that."""
    overload = _overload(node.target.overloadpacket, node)  # type: ignore[union-attr]
    if overload is None:
        raise GraphError(f"{where(node)}: {node.target} exists only with out=: assign the result")
    node.target, node.kwargs = overload, {key: value for key, value in node.kwargs.items() if key != "out"}
    with node.graph.inserting_before(node.next):
        copy = _added(node, node, aten.copy_.default, (out, node))
    copy.meta["val"] = example(out)
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _overload(overloads: Any, node: Node) -> Any:
    """Return the overload with the same arguments as a node's operator except `out`, or None."""
    names = [argument.name for argument in schema_of(node.target).arguments if argument.name != "out"]  # type: ignore[union-attr]
    for name in overloads.overloads():
        overload = getattr(overloads, name)
        if [argument.name for argument in overload._schema.arguments] == names:
            return overload
    return None


def changes_first(node: Node) -> bool:
    """Return True if a node's operator changes its first operand in place."""
    schema = schema_of(node.target)
    information = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
    return information is not None and information.is_write


def _replace(node: Node, states: Mapping[Node, Node], *, is_last: bool) -> tuple[Node, Node | None]:
    """Write the new content of the tensor that a changed one is a view of, and recreate every view of it.

    `states` maps nodes to the state whose content they have. The changed view itself is also recreated, except for the
    last change. Returns the tensor's new content, and its state, if it belongs to one.
    """
    changed = node.args[0]
    assert isinstance(changed, Node)
    path = ancestry(changed)
    root = path[0]
    state = states.get(root)
    is_fresh = root.op == "call_function" and not root.all_input_nodes
    if state is None and not is_fresh and any(packet(view) == "detach" for view in path):
        raise GraphError(f"{where(node)}: {packet(node)} changes a detached tensor that shares memory: copy it first")
    aliases = aliases_of(root, node)
    readers = {alias: [user for user in alias.users if user > node] for alias in aliases}
    for user in readers.pop(changed):
        user.replace_input_with(changed, node)
    further = list(node.users) if len(path) > 1 and not is_last else []
    if state is None and not further and not any(readers.values()):
        return node, None
    read_again = (ancestry(alias) for alias, users in readers.items() if users)
    _refuse_copies(node, aliases & set(path).union(*read_again))
    with node.graph.inserting_before(node.next):
        whole = _written(node, path)
        again = {alias: _read(node, whole, ancestry(alias)) for alias, users in readers.items() if users}
        same = _read(node, whole, path) if further else node
    for alias, view in again.items():
        for user in readers[alias]:
            user.replace_input_with(alias, view)
    for user in further:
        user.replace_input_with(node, same)
    return whole, state


def _refuse_copies(node: Node, aliases: Iterable[Node]) -> None:
    views = [alias for alias in aliases if _shares_memory(alias)]
    if strange := [view for view in views if _writer(view) is None or _may_be_copy(view)]:
        name = packet(strange[0]) or packet(strange[0].all_input_nodes[0])  # of one of several results
        raise GraphError(f"{where(node)}: {node.target} changes memory that is also read through {name}: copy it first")


def _written(node: Node, path: list[Node]) -> Node:
    """Return the root of a view with its new content, `node`; `path` leads from the root to the view."""
    content = node
    for parent, view in reversed(list(pairwise(path))):
        write = _writer(view)
        assert write is not None
        content = _added(node, parent, *write(parent, view, content))
    return content


def _read(node: Node, root: Node, path: list[Node]) -> Node:
    """Return a view of another root."""
    for view in path[1:]:
        root = _added(node, view, view.target, (root, *view.args[1:]), view.kwargs)
        root.meta[VIEW] = view.meta.get(VIEW, False)
    return root


def _added(node: Node, like: Node, target: Any, arguments: tuple[Any, ...], named: Any = None) -> Node:
    added = node.graph.call_function(target, arguments, named)
    added.meta = {**node.meta, "val": example(like)}
    return added


Written = Callable[[Node, Node, Node], tuple[Any, tuple[Any, ...]]]
"""Maps a tensor, a view of it and the view's new content to the operator and arguments that write it."""


def _as_was(parent: Node, view: Node, content: Node) -> tuple[Any, tuple[Any, ...]]:
    """Write a view that has all elements in order."""
    return aten.view.default, (content, list(example(parent).shape))


def _narrowed(parent: Node, view: Node, content: Node) -> tuple[Any, tuple[Any, ...]]:
    """Write a view of a contiguous range along a dimension."""
    _, dim, start, length = bound(view).values()
    start = start + example(parent).shape[dim] if start < 0 else start
    return aten.slice_scatter.default, (parent, content, dim, start, start + length)


def _scattered(target: Any) -> Written:
    """Write a view of some of the elements."""
    return lambda parent, view, content: (target, (parent, content, *view.args[1:]))


def _back(parent: Node, view: Node, content: Node) -> tuple[Any, tuple[Any, ...]]:
    """Write a view with permuted dimensions."""
    order = [dim % len(view.args[1]) for dim in view.args[1]]  # type: ignore[union-attr, arg-type, operator]
    return aten.permute.default, (content, [order.index(dim) for dim in range(len(order))])


AS_WAS = (
    "view", "view_as", "reshape", "flatten", "unflatten", "ravel", "unsqueeze", "squeeze", "_unsafe_view", "alias",
    "contiguous", "to", "type_as", "sum_to_size", "conj_physical", "atleast_1d", "atleast_2d", "atleast_3d", *DROPOUTS,
)  # fmt: skip
"""Operators whose results, if views, have all elements in order."""

WRITTEN: Mapping[str, Written] = {
    **dict.fromkeys(AS_WAS, _as_was),
    "narrow": _narrowed,
    "slice": _scattered(aten.slice_scatter.default),
    "select": _scattered(aten.select_scatter.default),
    **dict.fromkeys(
        ("transpose", "swapaxes", "swapdims", "t", "numpy_T", "mT"),
        lambda parent, view, content: (view.target, (content, *view.args[1:])),
    ),
    "permute": _back,
    "detach": lambda parent, view, content: (view.target, (content,)),
    "diagonal": _scattered(aten.diagonal_scatter.default),
}
"""Writers by the operator that creates the view."""


def _writer(view: Node) -> Written | None:
    """Return how a view is written; None if its elements cannot be located."""
    return WRITTEN.get(packet(view), _as_was if _is_its_operand(view) else None)


def _is_its_operand(node: Node) -> bool:
    """Return True for a result that is the operand itself, as may happen with type_as."""
    result, operand = example(node), example(node.all_input_nodes[0])
    if not (isinstance(result, torch.Tensor) and isinstance(operand, torch.Tensor)):
        return False
    if not node.meta.get(VIEW) or memory_of(node) != memory_of(node.all_input_nodes[0]):
        return False
    layouts = [(value.dtype, value.shape, value.stride(), value.storage_offset()) for value in (result, operand)]
    return layouts[0] == layouts[1]


def ancestry(node: Node) -> list[Node]:
    """Return the nodes from the one that owns the memory to this view of it."""
    path = [node]
    while _shares_memory(path[-1]) and path[-1].all_input_nodes:
        path.append(path[-1].all_input_nodes[0])
    return path[::-1]


def aliases_of(root: Node, until: Node) -> set[Node]:
    """Return the nodes before `until` whose results lie in the memory of a root."""
    aliases, waiting = {root}, [root]
    while waiting:
        alias = waiting.pop()
        users = [user for user in alias.users if user < until and _shares_memory(user)]
        views = {user for user in users if user.all_input_nodes[0] is alias or user.meta.get(VIEW)} - aliases
        waiting += views
        aliases |= views
    return aliases


def _shares_memory(node: Node) -> bool:
    """Return True if a node's result may be a view of its first operand."""
    name = packet(node)
    if node.meta.get(OWNER):
        return False
    if node.target is operator.getitem:
        return _returns_views(node.args[0])  # type: ignore[arg-type]
    if name == "to":
        return bool(example(node).dtype == example(node.all_input_nodes[0]).dtype)
    if name == "contiguous":
        return bool(example(node.all_input_nodes[0]).is_contiguous())
    return not _is_copy(node) if name in COPIES_OR_VIEWS else _returns_views(node)


COPIES_OR_VIEWS = ("reshape", "flatten", "ravel")


def _is_copy(node: Node) -> bool:
    """Return True for a copy that no strides can express as a view of the old memory."""
    shape = example(node).shape
    if _is_unknown(shape):
        return False
    try:
        example(node.all_input_nodes[0]).view(shape)
    except (RuntimeError, ValueError):
        return True
    return False


def _may_be_copy(node: Node) -> bool:
    """Return True for a reshaped tensor that may or may not be a copy."""
    return packet(node) in COPIES_OR_VIEWS and _is_unknown(example(node).shape)


def _is_unknown(shape: torch.Size) -> bool:
    return not all(isinstance(extent, int) for extent in shape)


def _returns_views(node: Node) -> bool:
    schema = schema_of(node.target)
    return schema is not None and (_aliases(schema) or node.meta.get(VIEW, False))


def _aliases(schema: torch.FunctionSchema) -> bool:
    """Return True for an operator whose results are views."""
    return any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
