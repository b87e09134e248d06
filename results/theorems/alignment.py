"""SoyBean's aligned tilings (Figure 6) found by trying all, for any operator whose iterations each read one element.

A tiling of the operands over two devices is aligned if every iteration can be done by exactly one device with what it
holds, both do as many, each uses all that it holds, and the result is a basic tiling or two partial sums.
"""

from __future__ import annotations

from itertools import product

from planner.layout import Signature
from tdl.index import Affine, Index

Iteration = dict[str, int]
Tiling = tuple[int | None, ...]
"""A dimension per operand, or None where it is replicated."""


def aligned(signature: Signature) -> dict[Tiling, int | str | None]:
    """Return what the result of each aligned tiling is: a dimension, or "red"."""
    results: dict[Tiling, int | str | None] = {}
    for tiling in product(*((*range(len(shape)), None) for shape in signature.shapes)):
        if (result := _result(signature, tiling)) is not None:
            results[tiling] = result
    return results


def _result(signature: Signature, tiling: Tiling) -> int | str | None:
    iterations = list(_iterations(signature))
    done = [
        [iteration for iteration in iterations if _can(signature, tiling, device, iteration)] for device in range(2)
    ]
    both = [iteration for iteration in done[0] if iteration in done[1]]
    if both or len(done[0]) != len(done[1]) or len(done[0]) + len(done[1]) != len(iterations):
        return None
    if not all(_all_used(signature, tiling, device, done[device]) for device in range(2)):
        return None
    return _combined(signature, done)


def _iterations(signature: Signature) -> list[Iteration]:
    """Return the iterations that read nothing outside a tensor."""
    names, extents = list(signature.extents), signature.extents.values()
    every = (dict(zip(names, values, strict=True)) for values in product(*map(range, extents)))
    return [
        iteration
        for iteration in every
        if all(_inside(signature, operand, at) for operand, at in _reads(signature, iteration))
    ]


def _reads(signature: Signature, iteration: Iteration) -> list[tuple[int, tuple[int, ...]]]:
    return [
        (access.operand, tuple(_value(index, iteration) for index in access.index))
        for access in signature.description.accesses
    ]


def _value(index: Index, iteration: Iteration) -> int:
    if not isinstance(index, Affine):
        raise TypeError(f"expected an affine index, found {index}")
    return int(index.value(iteration))


def _inside(signature: Signature, operand: int, at: tuple[int, ...]) -> bool:
    return all(0 <= x < extent for x, extent in zip(at, signature.shapes[operand], strict=True))


def _holds(signature: Signature, operand: int, dim: int | None, device: int, at: tuple[int, ...]) -> bool:
    return dim is None or (at[dim] >= signature.shapes[operand][dim] // 2) == bool(device)


def _can(signature: Signature, tiling: Tiling, device: int, iteration: Iteration) -> bool:
    return all(_holds(signature, o, tiling[o], device, at) for o, at in _reads(signature, iteration))


def _all_used(signature: Signature, tiling: Tiling, device: int, iterations: list[Iteration]) -> bool:
    used = {read for iteration in iterations for read in _reads(signature, iteration)}
    held = {
        (operand, at)
        for operand, shape in enumerate(signature.shapes)
        for at in product(*map(range, shape))
        if _holds(signature, operand, tiling[operand], device, at)
    }
    return used == held


def _combined(signature: Signature, done: list[list[Iteration]]) -> int | str | None:
    index, shape = signature.description.outputs[0].index, signature.outputs[0]
    computed = [{tuple(_value(expression, iteration) for expression in index) for iteration in part} for part in done]
    if computed[0] == computed[1]:
        return "red"
    for dim, extent in enumerate(shape):
        if all(
            computed[device] == {at for at in product(*map(range, shape)) if (at[dim] >= extent // 2) == bool(device)}
            for device in range(2)
        ):
            return dim
    return None


def described(signature: Signature) -> dict[Tiling, int | str | None]:
    """Return the same for the strategies that TDL finds: operands' dimensions in which the variable occurs, result."""
    results: dict[Tiling, int | str | None] = {}
    accesses = {access.operand: access.index for access in signature.description.accesses}
    output = signature.description.outputs[0].index
    for name, strategy in signature.description.strategies.items():
        tiling = tuple(_where(accesses[operand], name) for operand in range(len(signature.shapes)))
        results[tiling] = "red" if strategy.reducer else _where(output, name)
    return results


def _where(index: tuple[Index, ...], name: str) -> int | None:
    return next((dim for dim, expression in enumerate(index) if name in expression.variables), None)
