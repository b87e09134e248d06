"""Constants of a trace, which depend on no data and no parameter and are computed at import: positions, masks, angles.

Extents that depend on data, as with a selecting mask, are those of the example, which every batch must have.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from operator import attrgetter
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Node, map_arg

from planner.errors import GraphError
from planner.pytorch.capture.functionalization import FOLLOWING, OWNER, ancestry, changes_first
from planner.pytorch.capture.regions import UNTRACKED
from planner.pytorch.capture.trace import TracedModule, is_data, is_parameter
from planner.pytorch.nodes import advice, bound, example, has_gradient, is_random, leaves, packet, where
from planner.pytorch.private import OpOverload, fake_mode_of
from planner.pytorch.state.contents import Content

Known = Mapping[Node, Content]
"""Maps a node to its result."""

NO_DATA: Mapping[str, torch.Tensor] = {}

UNWRITTEN = ("empty", "empty_like", "new_empty", "empty_permuted", "empty_strided", "new_empty_strided")
"""Operators whose result is uninitialized."""

FILLED: Mapping[str, float | str] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", *UNWRITTEN), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
    **dict.fromkeys(("full", "full_like", "new_full"), "fill_value"),
}
"""Operators whose result is a single number whatever their operand holds: the number, or the argument's name."""


def needed_for_all(trace: TracedModule) -> set[Node]:
    """Return the nodes that the loss, changed buffers or batch norm's running statistics depend on."""
    norms = [(node, bound(node)) for node in trace.nodes if packet(node) == "batch_norm"]
    following = (node for node, given in norms if given["training"] and given["running_mean"] is not None)
    return set[Node]().union(*map(needed_for, (trace.first_result(), *trace.last_contents().values(), *following)))


def refuse_read_statistics(trace: TracedModule, needed: AbstractSet[Node]) -> None:
    """Raise GraphError, with the line, for running statistics that are also read or changed elsewhere.

    They do not change within a trace, so other readers would read their initial values.
    """
    norms = [(node, bound(node)) for node in trace.nodes if packet(node) in FOLLOWING]
    norms = [(node, given) for node, given in norms if given[FOLLOWING[packet(node)]]]
    following = {node for node, _ in norms}
    for node, given in norms:
        for statistic in (given["running_mean"], given["running_var"]):
            if statistic is None:
                continue
            root, *views = ancestry(statistic)
            if packet(node) != "batch_norm" or views or root.meta.get(OWNER):
                more = advice() if packet(node) == "instance_norm" else ""
                raise GraphError(
                    f"{where(node)}: {packet(node)} changes running statistics that are not plain buffers, or not as "
                    f"F.batch_norm does: give it buffers of its own{more}"
                )
            if readers := [user for user in root.users if user in needed - following]:
                raise GraphError(
                    f"{where(readers[0])}: {packet(readers[0])} reads or changes running statistics of batch norm: "
                    "keep statistics of your own in another buffer"
                )


def needed_for(loss: Node, operands: Callable[[Node], Iterable[Node]] = attrgetter("all_input_nodes")) -> set[Node]:
    """Return the nodes that a result depends on, through `operands` of each node."""
    waiting, needed = [loss], {loss}
    while waiting:
        before = set(operands(waiting.pop())) - needed
        needed |= before
        waiting += before
    return needed


def folded(trace: TracedModule, needed: AbstractSet[Node]) -> Known:
    """Return the results of needed nodes that depend on constants and buffers alone.

    Results that are too large for a graph are left to the operators that compute them, if any, or to the state dict.
    """
    results = computed_nodes(trace, needed)
    contents = {id(result): Content(result) for result in results.values() if isinstance(result, torch.Tensor)}
    known = {node: contents[id(result)] for node, result in results.items() if id(result) in contents}
    for node in reversed(list(trace.nodes)):
        is_read = node in known and any(user in needed and user not in results for user in node.users)
        is_made = node.op != "placeholder" or is_stored(trace, node)
        if is_read and is_made and not known[node].fits and not known[node].is_causal:
            del known[node], results[node]
    return known


def is_stored(trace: TracedModule, node: Node) -> bool:
    """Return True for a buffer of the state dict with the weights' dtype, which can be a weight of the graph."""
    spec, dtypes = trace.sources[node.name], {parameter.dtype for parameter in trace.parameters.values()}
    is_kept = spec.kind is InputKind.BUFFER and str(spec.target) in trace.program.state_dict
    return is_kept and dtypes == {example(node).dtype}


def computed_nodes(
    trace: TracedModule, needed: AbstractSet[Node], data: Mapping[str, torch.Tensor] = NO_DATA
) -> dict[Node, Any]:
    """Return the results of the nodes that depend only on constants, buffers and these data.

    A result is a tensor or several. Nodes that compute the same, such as each layer's angles, share a result.
    """
    known, sources, results = dict[Node, Any](), trace.sources, dict[str, Any]()
    with torch.no_grad():
        for node in trace.nodes:
            if node not in needed:
                continue
            content: Any
            if _is_empty(example(node)):
                content = torch.zeros(example(node).shape, dtype=example(node).dtype)
            elif node.op == "placeholder":
                content = _source(trace, sources[node.name], data)
            else:
                expression = _expression(node, known)
                content = results[expression] if expression in results else _computed(trace, node, known)
                results[expression] = content
            if content is not None:
                known[node] = content
    return known


def _expression(node: Node, known: Mapping[Node, Any]) -> str:
    """Return a node's operator and arguments as text, which is equal for operands with the same result."""
    spelled: Any = torch.fx.map_arg(
        (node.args, node.kwargs), lambda operand: f"%{id(known[operand])}" if operand in known else operand
    )
    return f"{node.target} {spelled}"


def _source(trace: TracedModule, spec: InputSpec, data: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the content of a placeholder; None if unknown."""
    if is_data(spec):
        return data.get(trace.data[str(spec.arg.name)])
    is_other = is_parameter(spec) or spec.arg.name in trace.states
    return None if is_other else trace.constant(str(spec.target))


def _is_empty(result: object) -> bool:
    """Return True for a tensor without elements, whose content is known however it is computed."""
    is_known = isinstance(result, torch.Tensor) and all(isinstance(extent, int) for extent in result.shape)
    return is_known and 0 in result.shape  # type: ignore[attr-defined]


def _computed(trace: TracedModule, node: Node, known: Mapping[Node, Any]) -> Any:
    """Return a node's result; None if it depends on unknown values or on random numbers."""
    if node.op == "get_attr":
        return getattr(trace.program.graph_module, str(node.target))
    if node.target is operator.getitem and node.args[0] in known:
        return known[node.args[0]][node.args[1]]  # type: ignore[index]
    if not isinstance(node.target, OpOverload):
        return None
    if packet(node) in FILLED:
        return _filled(node)
    has_own = packet(node) == "planner::with_gradient"  # known if its results and operands are
    given: Any = node.args
    operands = [*given[0], *given[1]] if has_own else node.all_input_nodes
    is_open = is_random(node) or packet(node) == "planner::arriving"  # the arriving gradient is not known yet
    if is_open or any(operand not in known for operand in operands):
        return None
    if has_own:
        result: Any = [known[operand] for operand in given[0]]
    else:
        arguments: Any
        arguments, named = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
        if changes_first(node):
            arguments = (arguments[0].clone(), *arguments[1:])
        result = node.target(*arguments, **named)
    return result if all(isinstance(tensor, torch.Tensor) for tensor in leaves(result)) else None


def _filled(node: Node) -> torch.Tensor:
    """Return a tensor filled with one number, which takes no more memory than that number."""
    like, number = example(node), FILLED[packet(node)]
    number = bound(node)[number] if isinstance(number, str) else number
    return torch.full((), number, dtype=like.dtype).expand(like.shape)


def differentiable(trace: TracedModule) -> set[Node]:
    """Return the nodes through which a gradient flows to a parameter."""
    nodes, sources = set[Node](), trace.sources
    for node in trace.nodes:
        if node.op == "placeholder":
            spec = sources[node.name]
            reached = is_parameter(spec) and trace.parameters[str(spec.target)].requires_grad
        else:
            reached = not nodes.isdisjoint(_differentiated(node))
        if reached and any(map(has_gradient, leaves(example(node)))):
            nodes.add(node)
    return nodes


def _differentiated(node: Node) -> list[Node]:
    """Return the operands that receive gradients in PyTorch, without those read for their shape or dtype only."""
    name = packet(node)
    if name == "detach" or name in FILLED or name.endswith("_like"):
        return []
    of_first = name in ("to", "planner::changed") or name.endswith("_as")
    return node.all_input_nodes[:1] if of_first else node.all_input_nodes


def refuse_untracked(trace: TracedModule) -> None:
    """Raise GraphError, with the line, for an in-place change under no_grad of a tensor that has a gradient."""
    reached = differentiable(trace)
    for node in trace.nodes:
        if not (node.meta.get(UNTRACKED) and changes_first(node)):
            continue
        changed = node.all_input_nodes[0]
        if changed in reached and not ancestry(changed)[0].meta.get(UNTRACKED):
            raise GraphError(f"{where(node)}: {packet(node)} under no_grad changes a tensor in autograd: copy it")


WITHOUT_GRADIENT = (
    "floor_divide", "heaviside", "linalg_ldl_factor", "linalg_ldl_factor_ex", "histogramdd", "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors", "_chunk_cat",
)  # fmt: skip
"""Operators without a gradient in PyTorch, which raises an error in the backward pass."""


def unreached(trace: TracedModule) -> frozenset[int]:
    """Return the identities of the parameters to which no gradient flows, for example because of integers.

    Raises GraphError, with the line, if a gradient would flow through an operator without one.
    """
    tracked, sources = differentiable(trace), trace.sources
    flows = needed_for(trace.first_result(), lambda node: tracked.intersection(_differentiated(node)))
    for node in trace.nodes:
        if node in flows and packet(node).removesuffix("_") in WITHOUT_GRADIENT:
            raise GraphError(
                f"{where(node)}: {packet(node)} has no gradient, and PyTorch raises an error in the backward pass: "
                "detach() its operands"
            )
    reached = {str(sources[node.name].target) for node in flows if node.op == "placeholder"}
    return frozenset(map(id, trace.parameters.values())) - {id(trace.parameters[name]) for name in reached}


aten = torch.ops.aten


def fix_extents(trace: TracedModule, data: Mapping[str, torch.Tensor]) -> None:
    """Replace data-dependent extents by those of an example, if data and constants alone determine them.

    A selecting mask becomes the indices that it selects. If they depend on data, PyTorch is called for them in every
    step, and the result must have the extent recorded here.
    """
    selecting = {node: masks for node in trace.nodes if (masks := _masks(node))}
    before = {node for masks in selecting.values() for mask in masks for node in needed_for(mask)}
    contents = computed_nodes(trace, before, data)
    changed = set[Node]()
    for node in list(trace.nodes):
        if node in selecting and all(mask in contents for mask in selecting[node]):
            changed.update(_number(node, selecting[node], contents))
        if node.op == "call_function" and not changed.isdisjoint(node.all_input_nodes):
            follow(node)
            changed.add(node)


def _masks(node: Node) -> list[Node]:
    """Return the boolean masks by which a node selects elements."""
    if not any(map(is_open, (node, *node.all_input_nodes))):
        return []
    masks: list[Node] = []
    match packet(node), node.args:
        case "nonzero" | "where", [Node() as mask]:
            masks = [mask]
        case "masked_select", [Node() as value, Node() as mask] if example(value).shape == example(mask).shape:
            masks = [mask]
        case "index" | "index_put" | "index_put_", [_, [*indices], *_]:
            masks = [index for index in indices if isinstance(index, Node) and example(index).dtype is torch.bool]
    return masks if all(example(mask).dim() for mask in masks) else []  # a scalar has no positions


def is_open(node: Node) -> bool:
    """Return True if a result has a symbolic extent."""
    return any(
        isinstance(leaf, torch.Tensor) and not all(isinstance(extent, int) for extent in leaf.shape)
        for leaf in leaves(example(node))
    )


def _number(node: Node, masks: list[Node], contents: Mapping[Node, Any]) -> list[Node]:
    """Let a node select by the positions that its masks show; return the nodes that compute these."""
    columns = {mask: _columns(node, mask, contents[mask].nonzero()) for mask in masks}
    match packet(node):
        case "nonzero":
            node.replace_all_uses_with(columns[masks[0]][0].all_input_nodes[0])
        case "where":
            for user in list(node.users):
                user.replace_all_uses_with(columns[masks[0]][user.args[1]])  # type: ignore[index]
        case "masked_select":
            node.target, node.args = aten.index.Tensor, (node.args[0], columns[masks[0]])
        case _:
            given: Any = node.args[1]
            indices = [column for index in given for column in columns.get(index, [index])]
            node.args = (node.args[0], indices, *node.args[2:])
    return [column for of_mask in columns.values() for column in (of_mask[0].all_input_nodes[0], *of_mask)]


def _columns(node: Node, mask: Node, places: torch.Tensor) -> list[Node]:
    """Return, per dimension of a mask, a node inserted before `node` with the positions of what the mask shows."""
    with node.graph.inserting_before(node):
        numbers = node.graph.call_function(aten.nonzero.default, (mask,))
        columns = [node.graph.call_function(aten.select.int, (numbers, 1, dim)) for dim in range(places.shape[1])]
    with fake_mode_of([example(mask)]):
        for added, shape in ((numbers, places.shape), *((column, places.shape[:1]) for column in columns)):
            added.meta = {**node.meta, "val": torch.empty(shape, dtype=torch.int64)}
    return columns


def follow(node: Node) -> None:
    """Recompute the example of a node from its operands, with numbers in place of extents that depended on data."""
    if packet(node) == "_assert_scalar":
        node.graph.erase_node(node)
        return
    node.args, node.kwargs = map_arg((node.args, node.kwargs), _number_or_node)
    with fake_mode_of([example(operand) for operand in node.all_input_nodes]), torch.no_grad():
        arguments, named = map_arg((node.args, node.kwargs), example)
        node.meta["val"] = node.target(*arguments, **named)  # type: ignore[operator]


def _number_or_node(node: Node) -> Any:
    return example(node) if isinstance(example(node), int | float) else node
