"""Cases of convolutions, pooling, and copies of windows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from executor.cases import Case, Draw, Generate
from planner.graph.ir import Value

Sides = Mapping[str, tuple[int, int]]
"""Sizes along y and x: of the image, the result, and the kernel."""


def _windows(draw: Draw, pooling: bool = False, dilated: bool = True) -> tuple[Sides, dict[str, Value]]:
    """Draw windows that each read some element of the image; return them and their attributes."""
    sides, apart = [], 1 if not dilated or draw.flag() else draw.size(1, 3)
    for _ in range(2):
        kernel, stride, result = draw.size(1, 4 if apart == 1 else 3), draw.size(1, 3), draw.size(1, 5)
        reach = (kernel - 1) * apart + 1
        most = reach // 2 if pooling or apart > 1 else reach - 1
        padding = draw.size(0, (kernel - 1) // 2 if pooling and apart > 1 else most)
        image = (result - 1) * stride + reach - 2 * padding
        while image < 1:
            image, result = image + stride, result + 1
        image += draw.size(0, stride - 1)
        sides.append((image, result, kernel, stride, padding))
    names = ("image", "result", "kernel", "stride", "padding")
    drawn = {name: (along_y, along_x) for name, along_y, along_x in zip(names, *sides, strict=True)}
    spaced: dict[str, Value] = {} if apart == 1 else {"dilation": (apart, apart)}
    return drawn, {"stride": drawn["stride"], "padding": drawn["padding"], **spaced}


def _extents(sides: Sides, *variables: str) -> dict[str, Value]:
    """Return the extents of image rows and columns ("y", "x") and of taps ("dy", "dx")."""
    known = dict(zip(("y", "x", "dy", "dx"), (*sides["image"], *sides["kernel"]), strict=True))
    return {"extents": {variable: known[variable] for variable in variables}}


def _channels(draw: Draw) -> tuple[int, int, int, dict[str, Value]]:
    """Draw the number of groups, the input and output channels per group, and the attribute."""
    groups = 1 if draw.flag() else draw.size(2, 3)
    ci, co = draw.sizes(2, 1 if groups > 1 else 2, 3)
    return groups, ci, co, ({} if groups == 1 else {"groups": groups})


def _convolution(draw: Draw, operands: str, *extents: str) -> Case:
    """Return operands by letter: "x" images, "w" weights, "y" results."""
    (sides, attributes), n, (g, ci, co, groups) = _windows(draw), draw.size(2, 3), _channels(draw)
    known = {"x": (n, g * ci, *sides["image"]), "w": (g * co, ci, *sides["kernel"]), "y": (n, g * co, *sides["result"])}
    arrays = tuple(draw.array(*known[letter]) for letter in operands)
    if not extents:
        return Case(arrays, attributes | groups, shapes=(known["y"],))
    return Case(arrays, attributes | groups | _extents(sides, *extents))


def _im2col(draw: Draw) -> Case:
    (sides, attributes), outer = _windows(draw), draw.sizes(2, 2, 3)
    extents: dict[str, Value] = dict(zip(("dy", "dx", "y", "x"), (*sides["kernel"], *sides["result"]), strict=True))
    return Case((draw.array(*outer, *sides["image"]),), attributes | {"extents": extents})


def _col2im(draw: Draw) -> Case:
    (sides, attributes), outer = _windows(draw), draw.sizes(2, 2, 3)
    columns = draw.array(*outer, *sides["kernel"], *sides["result"])
    return Case((columns,), attributes | _extents(sides, "y", "x"))


def _pool(draw: Draw, outputs: int = 1) -> Case:
    (sides, attributes), outer = _windows(draw, pooling=True, dilated=outputs == 2), draw.sizes(2, 2, 3)
    attributes |= _extents(sides, "dy", "dx") | {"kernel": sides["kernel"]}
    return Case((draw.array(*outer, *sides["image"]),), attributes, shapes=((*outer, *sides["result"]),) * outputs)


def _pool_backward(draw: Draw, indexed: bool) -> Case:
    (sides, attributes), outer = _windows(draw, pooling=True, dilated=indexed), draw.sizes(2, 2, 3)
    attributes |= _extents(sides, "y", "x", "dy", "dx") | {"kernel": sides["kernel"]}
    shape = (*outer, *sides["result"])
    grad = draw.array(*shape)
    return Case((grad, draw.below(prod(sides["kernel"]), *shape)) if indexed else (grad,), attributes)


CASES: dict[str, Generate] = {
    "convolution": lambda draw: _convolution(draw, "xw"),
    "convolution_backward_input": lambda draw: _convolution(draw, "yw", "y", "x"),
    "convolution_backward_weight": lambda draw: _convolution(draw, "yx", "dy", "dx"),
    "im2col": _im2col,
    "col2im": _col2im,
    "max_pool2d_with_indices": partial(_pool, outputs=2),
    "max_pool2d_with_indices_backward": partial(_pool_backward, indexed=True),
    "avg_pool2d": _pool,
    "avg_pool2d_backward": partial(_pool_backward, indexed=False),
}
