"""The papers' alternatives, as restrictions of the same domains solved by the same solver.

Where a restriction cannot be kept at a step because the extent cannot be split there, every candidate of that step is
allowed and the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import eq

import tdl
from planner.graph.ir import Node
from planner.layout import EVERYWHERE, REPLICATE, Placement, Shard, Signature
from planner.search.coarsen import TensorVariable
from planner.search.domains import choices_at, placements_at
from planner.search.joint import over
from planner.search.space import Limits, Outcome, Space, State


def equalchop(space: Space, limits: Limits) -> Outcome:
    """Split every tensor along one dimension and every operator along one variable, the same at all steps."""
    return over(space, [_constant(space, v) for v in range(len(space.coarse.variables))], limits)


def allrow(space: Space, limits: Limits) -> Outcome:
    """Split every tensor along its first dimension that can be split; operators as is cheapest."""

    def candidates(v: int) -> Sequence[State]:
        variable = space.coarse.variables[v]
        if isinstance(variable, TensorVariable):
            return [tuple(_at(space, v, step)[0] for step in range(len(space.ways)))]
        return space.candidates(v)

    return over(space, [candidates(v) for v in range(len(space.coarse.variables))], limits)


def data_parallel(space: Space, limits: Limits) -> Outcome:
    """Split the batch, dimension 0 of the inputs, wherever it goes; replicate weights and all that has no batch.

    Gradients of weights are reduced and every worker updates its own copy. Operators without a batch that cannot
    run everywhere do what is cheapest.
    """
    batch = batch_dimensions(space)

    def candidates(v: int) -> Sequence[State]:
        variable = space.coarse.variables[v]
        if isinstance(variable, TensorVariable):
            dims = {batch.get(("tensor", name)) for name in variable.members}
            wanted: set[object] = {REPLICATE if dim is None else Shard(int(dim)) for dim in dims}
        else:
            names = {batch.get(("node", name)) for name in variable.members}
            wanted = {EVERYWHERE if name is None else name for name in names}
        return _kept(space, v, wanted.__contains__)

    return over(space, [candidates(v) for v in range(len(space.coarse.variables))], limits)


def _at(space: Space, v: int, step: int) -> tuple[Placement, ...] | tuple[str, ...]:
    variable = space.coarse.variables[v]
    if isinstance(variable, TensorVariable):
        return placements_at(variable.shape, space.ways, step, replicate=space.replicate)
    return choices_at(variable.signature, space.ways, step, replicate=space.replicate)


def _constant(space: Space, v: int) -> list[State]:
    """Return the states that choose one thing at every step where it can be chosen."""
    options = dict.fromkeys(option for step in range(len(space.ways)) for option in _at(space, v, step))
    kept = dict.fromkeys(state for wanted in options for state in _kept(space, v, partial(eq, wanted)))
    return list(kept) or [()]


def _kept(space: Space, v: int, wanted: Callable[[object], bool]) -> list[State]:
    """Return the states that choose what is wanted at every step where it can be chosen."""
    found: list[State] = [()]
    for step in range(len(space.ways)):
        options = _at(space, v, step)
        kept = [option for option in options if wanted(option)] or list(options)
        found = [(*state, option) for state in found for option in kept]
    return found


def batch_dimensions(space: Space) -> dict[tuple[str, str], int | str | None]:
    """Return the batch dimension of every tensor and the batch variable of every node, by ("tensor" | "node", name).

    It starts as dimension 0 of the inputs and passes through plain index variables.
    """
    graph = space.coarse.graph
    found: dict[tuple[str, str], int | str | None] = {
        ("tensor", name): 0 for name, tensor in graph.tensors.items() if tensor.role == "input" and tensor.shape
    }
    for node in graph.nodes:
        signature = space.coarse.signatures[node.name]
        variable = _batch_variable(node, signature, found)
        found["node", node.name] = variable
        for name, output in zip(node.outputs, signature.description.outputs, strict=True):
            found["tensor", name] = next(
                (dim for dim, index in enumerate(output.index) if variable and _plain(index) == variable), None
            )
    return found


def _batch_variable(
    node: Node, signature: Signature, found: dict[tuple[str, str], int | str | None]
) -> str | None:
    for access in signature.description.accesses:
        dim = found.get(("tensor", node.inputs[access.operand]))
        if isinstance(dim, int):
            name = _plain(access.index[dim])
            if name in signature.description.strategies:
                return name
    return None


def _plain(index: tdl.Index) -> str | None:
    """Return the variable that the index is, or by whose leading digits it is made up."""
    if isinstance(index, tdl.Affine) and index.is_plain:
        return index.variables[0]
    if isinstance(index, tdl.Digits):
        return index.variables[0]
    return None
