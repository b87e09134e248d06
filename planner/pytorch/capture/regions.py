"""Inline the regions that PyTorch keeps apart in a trace (no_grad, autocast)."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from planner.errors import GraphError
from planner.pytorch.capture.functionalization import changes_first
from planner.pytorch.nodes import example, has_gradient, leaves, line_of, where
from planner.pytorch.private import REGION, OpOverload, TorchDispatchMode, exporting_modes, fake_mode_of
from planner.pytorch.translate.decompositions import decompose, dtypes, inserted


def with_casts(module: GraphModule, autocast: torch.autocast) -> None:
    """Insert the casts of autocast before each operator, and replace operators that cast internally by their parts.

    Raises GraphError, with the line, for an operator for which neither is possible.
    """
    known = dict[str, Mapping[int, torch.dtype] | None]()
    for node in list(module.graph.nodes):
        if isinstance(node.target, OpOverload):
            places = {operand: f"{place} {example(operand)}" for place, operand in enumerate(node.all_input_nodes)}
            text = f"{node.target} {torch.fx.map_arg((node.args, node.kwargs), places.__getitem__)}"
            if text not in known:  # layers repeat
                known[text] = _casts(node, autocast)
            _cast(module, node, autocast, known[text])


def _casts(node: Node, autocast: torch.autocast) -> Mapping[int, torch.dtype] | None:
    """Return what autocast casts operands to, by their place; None for an operator that it casts otherwise."""
    _, inner, without = _run(node, {}, None)
    _, inner_within, within = _run(node, {}, autocast)
    casts = {operand: dtype for operand, dtype in within.items() if without.get(operand) != dtype}
    results, *_ = _run(node, casts, None)
    if results != dtypes(leaves(example(node))) or inner != inner_within:
        return None
    return {node.all_input_nodes.index(operand): dtype for operand, dtype in casts.items()}


def _cast(module: GraphModule, node: Node, autocast: torch.autocast, casts: Mapping[int, torch.dtype] | None) -> None:
    if casts is not None:
        for operand, dtype in [(node.all_input_nodes[place], dtype) for place, dtype in casts.items()]:
            with module.graph.inserting_before(node):
                cast = module.graph.call_function(torch.ops.aten.to.dtype, (operand, dtype))
            cast.meta = {**node.meta, "val": example(operand).to(dtype)}
            node.replace_input_with(operand, cast)
    else:
        with autocast:
            is_replaced = decompose(module, node, "")
        if not is_replaced:
            raise GraphError(f"{line_of(node)}: autocast cannot be traced through {node.target}: cast explicitly")


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record which tensors are cast, and to which dtypes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.casts: list[tuple[torch.Tensor, torch.dtype]] = []

    def __torch_dispatch__(self, function: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._to_copy.default:
            self.casts.append((args[0], kwargs.get("dtype")))
        return function(*args, **(kwargs or {}))


def _run(
    node: Node, casts: Mapping[Node, torch.dtype], autocast: torch.autocast | None
) -> tuple[list[Any], int, Mapping[Node, torch.dtype]]:
    """Run an operator on operands after casts.

    Return the dtypes of its results, the number of other tensors that it casts, and the dtypes to which it casts
    operands.
    """
    examples = {operand: example(operand) for operand in node.all_input_nodes}
    with fake_mode_of([*examples.values()]), torch.no_grad():
        operands = {node: value.to(casts[node]) if node in casts else value for node, value in examples.items()}
        arguments, named = torch.fx.map_arg((node.args, node.kwargs), operands.__getitem__)
        with autocast or nullcontext(), _Casts() as noted:
            try:
                results = node.target(*arguments, **named)  # type: ignore[operator]
            except RuntimeError:  # operands of several dtypes, without autocast
                return [], 0, {}
    nodes = {id(value): operand for operand, value in operands.items()}
    cast = {nodes[id(tensor)]: dtype for tensor, dtype in noted.casts if id(tensor) in nodes}
    return dtypes(leaves(results)), sum(id(tensor) not in nodes for tensor, _ in noted.casts), cast


GRADIENTS, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"

FIRST_OPERAND = {GRADIENTS: 2, AUTOCAST: 5}
"""Index of the first argument that belongs to the region's graph; the argument before it is the graph."""


class RegionsApart(TorchFunctionMode):
    """Within this mode, an export sees autocast end where gradients are switched on or off, and begin again.

    PyTorch forgets where a region of autocast began if another begins inside it. Also, transformers do not test masks
    for causality, which is_causal states.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch."""
        asks = function is torch.Tensor.__bool__ and sys._getframe(1).f_code.co_filename == transformer.__file__
        if asks and exporting_modes():
            return False
        if function is not torch._C._set_grad_enabled:
            return function(*args, **(kwargs or {}))
        begin, end = REGION
        regions = [(mode, [*mode.enter_autocast_nodes]) for mode in exporting_modes()]
        for mode, entered in regions:
            for _ in entered:
                mode.__torch_function__(end, ())
        result = function(*args)
        for mode, entered in regions:
            for node in entered:
                mode.__torch_function__(begin, (), node.args)
        return result


UNTRACKED = "untracked"
"""Marks a node that was in a region without gradients."""


def inline_regions(module: GraphModule, autocast: torch.autocast | None = None) -> None:
    """Replace every region by its nodes; results of a region without gradients are detached.

    `autocast` is that of the module itself; its casts become nodes. See `with_casts` for what is refused.
    """
    if autocast is not None:
        with_casts(module, autocast)
    for node in list(module.graph.nodes):
        name = str(node.target)
        if name in FIRST_OPERAND:
            _inline(module, node, name, autocast)


def _inline(module: GraphModule, node: Node, name: str, autocast: torch.autocast | None) -> None:
    first = FIRST_OPERAND[name]
    part = node.args[first - 1]
    assert isinstance(part, Node)
    region: GraphModule = module.get_submodule(str(part.target))  # type: ignore[assignment]
    if name == AUTOCAST:
        device, dtype, enabled, _ = cast(Any, node.args[: first - 1])
        autocast = torch.autocast(device, dtype, cache_enabled=False) if enabled else None
    inline_regions(region, autocast)
    operands, is_tracked = node.args[first:], name != GRADIENTS or bool(node.args[0])
    for inner in list(region.graph.nodes):
        inner.meta[UNTRACKED] = inner.meta.get(UNTRACKED) or not is_tracked
        if not is_tracked and changes_first(inner):
            _detach_written(inner)
    results: list[Any] = leaves(inserted(module, node, region, operands))
    if not is_tracked:
        results = [_detached(node, x, operands) if isinstance(example(x), torch.Tensor) else x for x in results]
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise GraphError(f"{where(user)}: uses all results of a region of {name} at once")
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        module.graph.erase_node(user)
    module.graph.erase_node(node)
    module.graph.erase_node(part)


def _detach_written(node: Node) -> None:
    """Detach what an operator in a region without gradients writes into its first operand."""
    for operand in [operand for operand in node.all_input_nodes[1:] if has_gradient(example(operand))]:
        node.replace_input_with(operand, detach(node, operand))


def detach(node: Node, operand: Node) -> Node:
    """Return a node, before the first, that detaches an operand."""
    with node.graph.inserting_before(node):
        detached = node.graph.call_function(torch.ops.aten.detach.default, (operand,))
    detached.meta = dict(operand.meta)
    return detached


def _detached(node: Node, result: Node, operands: Sequence[object]) -> Node:
    """Return a region's result without a gradient, unless it is an operand itself, such as a cast to its own dtype."""
    origin = result
    while origin not in operands and _returns_operand(origin):
        origin = origin.all_input_nodes[0]
    return result if origin in operands else detach(node, result)


def _returns_operand(node: Node) -> bool:
    """Return True if PyTorch returns the very tensor that is an operator's first operand."""
    operands = node.all_input_nodes
    if not isinstance(node.target, OpOverload) or not operands:
        return False
    if changes_first(node):
        return True
    examples = [example(operand) for operand in operands]
    with fake_mode_of(examples), torch.no_grad():
        arguments, named = torch.fx.map_arg((node.args, node.kwargs), example)
        return node.target(*arguments, **named) is examples[0]
