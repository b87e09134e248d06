"""Casts that autocast makes as it runs, as nodes of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Node

from planner.errors import GraphError
from planner.pytorch.nodes import example, leaves, line_of
from planner.pytorch.private import OpOverload, TorchDispatchMode, fake_mode_of
from planner.pytorch.translate.decompositions import decompose, dtypes


def with_casts(module: GraphModule, autocast: torch.autocast) -> None:
    """Cast what autocast casts before each of a graph's operators, and put what casts within in its parts' place.

    Raises a GraphError, with the line, for an operator of which that cannot be said.
    """
    for node in list(module.graph.nodes):
        if isinstance(node.target, OpOverload):
            _cast(module, node, autocast)


def _cast(module: GraphModule, node: Node, autocast: torch.autocast) -> None:
    _, inner, without = _run(node, {}, None)
    _, inner_within, within = _run(node, {}, autocast)
    casts = {operand: dtype for operand, dtype in within.items() if without.get(operand) != dtype}
    results, *_ = _run(node, casts, None)
    if results == dtypes(leaves(example(node))) and inner == inner_within:
        for operand, dtype in casts.items():
            with module.graph.inserting_before(node):
                cast = module.graph.call_function(torch.ops.aten.to.dtype, (operand, dtype))
            cast.meta = {**node.meta, "val": example(operand).to(dtype)}
            node.replace_input_with(operand, cast)
    else:
        with autocast:
            is_replaced = decompose(module, node, "")
        if not is_replaced:
            raise GraphError(f"{line_of(node)}: {node.target} under autocast: cast explicitly")


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which tensors are cast, and to what dtypes."""

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
    """Run an operator on operands that are cast.

    Return the dtypes of its results, how many other tensors it casts, and to which dtypes it casts operands.
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
