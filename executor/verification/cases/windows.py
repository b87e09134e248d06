"""Cases of convolutions, pooling, and copies of windows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from executor.cases import Case, Draw, Generate
from planner.graph.ir import Value


@dataclass(frozen=True, slots=True)
class Windows:
    """Random sizes of a windowed operator, along y and along x."""

    image: tuple[int, int]
    result: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def attributes(self) -> dict[str, Value]:
        """Return stride and padding, and dilation if there is any, as attributes."""
        dilated: dict[str, Value] = {} if self.dilation == (1, 1) else {"dilation": self.dilation}
        return {"stride": self.stride, "padding": self.padding, **dilated}

    def extents(self, *variables: str) -> dict[str, Value]:
        """Return the extents of image rows and columns ("y", "x") and of taps ("dy", "dx")."""
        known = {"y": self.image[0], "x": self.image[1], "dy": self.kernel[0], "dx": self.kernel[1]}
        return {"extents": {variable: known[variable] for variable in variables}}


def _windows(draw: Draw, pooling: bool = False, dilated: bool = True) -> Windows:
    """Draw windows, every one of which reads some element of the image."""
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
        sides.append((image, result, kernel, stride, padding, apart))
    return Windows(*((along_y, along_x) for along_y, along_x in zip(*sides, strict=True)))


def _channels(draw: Draw) -> tuple[int, int, int, dict[str, Value]]:
    """Draw groups, input channels and output channels of each, and the attribute."""
    groups = 1 if draw.flag() else draw.size(2, 3)
    ci, co = draw.sizes(2, 1 if groups > 1 else 2, 3)
    return groups, ci, co, ({} if groups == 1 else {"groups": groups})


def _convolution(draw: Draw, operands: str, *extents: str) -> Case:
    """Operands by letter: "x" images, "w" weights, "y" results."""
    w, n, (g, ci, co, groups) = _windows(draw), draw.size(2, 3), _channels(draw)
    known = {"x": (n, g * ci, *w.image), "w": (g * co, ci, *w.kernel), "y": (n, g * co, *w.result)}
    arrays = tuple(draw.array(*known[letter]) for letter in operands)
    if not extents:
        return Case(arrays, w.attributes | groups, shapes=(known["y"],))
    return Case(arrays, w.attributes | groups | w.extents(*extents))


def _im2col(draw: Draw) -> Case:
    w, outer = _windows(draw), draw.sizes(2, 2, 3)
    extents: dict[str, Value] = dict(zip(("dy", "dx", "y", "x"), (*w.kernel, *w.result), strict=True))
    return Case((draw.array(*outer, *w.image),), w.attributes | {"extents": extents})


def _col2im(draw: Draw) -> Case:
    w, outer = _windows(draw), draw.sizes(2, 2, 3)
    return Case((draw.array(*outer, *w.kernel, *w.result),), w.attributes | w.extents("y", "x"))


def _pool(draw: Draw, outputs: int = 1) -> Case:
    w, outer = _windows(draw, pooling=True, dilated=outputs == 2), draw.sizes(2, 2, 3)
    attributes = w.attributes | w.extents("dy", "dx") | {"kernel": w.kernel}
    return Case((draw.array(*outer, *w.image),), attributes, shapes=((*outer, *w.result),) * outputs)


def _pool_backward(draw: Draw, indexed: bool) -> Case:
    w, outer = _windows(draw, pooling=True, dilated=indexed), draw.sizes(2, 2, 3)
    attributes = w.attributes | w.extents("y", "x", "dy", "dx") | {"kernel": w.kernel}
    grad = draw.array(*outer, *w.result)
    if not indexed:
        return Case((grad,), attributes)
    return Case((grad, draw.below(w.kernel[0] * w.kernel[1], *outer, *w.result)), attributes)


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
