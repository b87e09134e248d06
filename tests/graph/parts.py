"""Operators from parts: what other frameworks call one operator, built from several of the catalog.

Each takes a builder, the names of tensors, and the name of the result, which prefixes the names of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from planner.errors import GraphError
from planner.graph.build import GraphBuilder
from planner.graph.ir import Value
from tdl import TDLError
from tests.tdl.reshaping import reshape_attributes


def reshape(b: GraphBuilder, x: str, shape: Sequence[int], name: str) -> str:
    """Give a tensor another shape; by way of one dimension where the two shapes have no common factors."""
    old, new = b.shape(x), tuple(shape)
    if prod(old) != prod(new):
        raise GraphError(f"node {name!r}: a tensor of shape {old} cannot have shape {new}")
    try:
        attributes = reshape_attributes(old, new)
    except TDLError:
        x = b.apply("reshape", x, name=f"{name}.flat", **reshape_attributes(old, (prod(old),)))
        attributes = reshape_attributes((prod(old),), new)
    return b.apply("reshape", x, name=name, **attributes)


def split(b: GraphBuilder, x: str, parts: int, name: str, dim: int = -1) -> tuple[str, ...]:
    """Cut a dimension into equal parts."""
    shape = b.shape(x)
    dim %= len(shape)
    if shape[dim] % parts:
        raise GraphError(f"node {name!r}: {shape[dim]} elements of dimension {dim} cannot be cut into {parts} parts")
    grouped = (*shape[:dim], parts, shape[dim] // parts, *shape[dim + 1 :])
    return b.apply_all("unbind", reshape(b, x, grouped, f"{name}.parts"), name=name, dim=dim, n=parts)


def _rows(b: GraphBuilder, x: str, name: str, dim: int) -> tuple[str, str, str]:
    """Return x with every row's maximum and sum of exponentials."""
    maximum = b.apply("amax", x, name=f"{name}.maximum", dims=(dim % len(b.shape(x)),))
    return x, maximum, b.apply("sum_exp", x, maximum, name=f"{name}.total", dim=dim)


def softmax(b: GraphBuilder, x: str, name: str, dim: int = -1) -> str:
    """Softmax along one dimension."""
    return b.apply("softmax", *_rows(b, x, name, dim), name=name, dim=dim)


def log_softmax(b: GraphBuilder, x: str, name: str, dim: int = -1) -> str:
    """Logarithm of softmax along one dimension."""
    return b.apply("log_softmax", *_rows(b, x, name, dim), name=name, dim=dim)


def cross_entropy(b: GraphBuilder, logits: str, labels: str, name: str) -> str:
    """Mean cross entropy of logits [b, c] and labels [b]."""
    count = b.shape(logits)[0]
    return b.apply("cross_entropy", *_rows(b, logits, name, -1), labels, name=name, count=count)


def _normalize(
    b: GraphBuilder,
    operands: tuple[str, str, str],
    name: str,
    dims: tuple[tuple[int, ...], tuple[int, ...]],
    eps: float,
) -> str:
    """Normalize (x, weight, bias) with statistics and weights of the given dimensions."""
    (x, weight, bias), (statistics, weights) = operands, dims
    shape = b.shape(x)
    reduced = tuple(dim for dim in range(len(shape)) if dim not in statistics)
    how: dict[str, Value] = {"dims": reduced, "count": prod(shape[dim] for dim in reduced)}
    mean = b.apply("mean", x, name=f"{name}.mean", **how)
    var = b.apply("var", x, mean, name=f"{name}.var", **how)
    attributes: dict[str, Value] = {"statistics": statistics, "weights": weights, "eps": eps}
    return b.apply("normalize", x, mean, var, weight, bias, name=name, **attributes)


def layer_norm(b: GraphBuilder, x: str, weight: str, bias: str, name: str, eps: float = 1e-5) -> str:  # noqa: PLR0917
    """Normalize over the last dimensions, those of the weight."""
    rank = len(b.shape(x))
    kept = rank - len(b.shape(weight))
    return _normalize(b, (x, weight, bias), name, (tuple(range(kept)), tuple(range(kept, rank))), eps)


def group_norm(  # noqa: PLR0917
    b: GraphBuilder, x: str, weight: str, bias: str, groups: int, name: str, eps: float = 1e-5
) -> str:
    """Normalize [n, c, ...] over each of `groups` groups of channels."""
    n, c, *rest = b.shape(x)
    grouped = reshape(b, x, (n, groups, c // groups, *rest), f"{name}.groups")
    parameters = [reshape(b, own, (groups, c // groups), f"{name}.{own}") for own in (weight, bias)]
    normal = _normalize(b, (grouped, parameters[0], parameters[1]), f"{name}.normal", ((0, 1), (1, 2)), eps)
    return reshape(b, normal, (n, c, *rest), name)


def rms_norm(b: GraphBuilder, x: str, weight: str, name: str, eps: float = 1e-6) -> str:
    """Divide rows (the last dimension) by their root mean square, times the weight."""
    *rows, last = range(len(b.shape(x)))
    square = b.apply("square", x, name=f"{name}.square")
    mean = b.apply("mean", square, name=f"{name}.mean", dims=(last,), count=b.shape(x)[last])
    inverse = b.apply("rsqrt", b.apply("add_scalar", mean, name=f"{name}.eps", value=eps), name=f"{name}.rsqrt")
    normal = b.apply("mul", x, inverse, name=f"{name}.normal", dims=tuple(rows))
    return b.apply("mul", normal, weight, name=name, dims=(last,))


def attention(b: GraphBuilder, query: str, key: str, value: str, name: str, causal: bool = True) -> str:  # noqa: PLR0917
    """Scaled dot-product attention of [b, h, s, d] tensors, each position on itself and those before if causal."""
    scores = b.apply("einsum", query, key, name=f"{name}.products", equation="bhqd,bhkd->bhqk")
    scores = b.apply("scale", scores, name=f"{name}.scores", factor=b.shape(query)[-1] ** -0.5)
    if causal:
        scores = b.apply("causal_mask", scores, name=f"{name}.masked")
    weights = softmax(b, scores, f"{name}.weights")
    return b.apply("einsum", weights, value, name=name, equation="bhqk,bhkd->bhqd")


def convolution_1d(  # noqa: PLR0917
    b: GraphBuilder,
    x: str,
    weight: str,
    name: str,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> str:
    """Convolve [n, ci, x] with [co, ci / groups, dx], as one row of an image."""
    rows = [reshape(b, own, (*b.shape(own)[:2], 1, b.shape(own)[2]), f"{name}.{own}.row") for own in (x, weight)]
    attributes: dict[str, Value] = {"stride": (1, stride), "padding": (0, padding)}
    attributes |= {"dilation": (1, dilation), "groups": groups} if (dilation, groups) != (1, 1) else {}
    row = b.apply("convolution", *rows, name=f"{name}.row", **attributes)
    n, c, _, length = b.shape(row)
    return reshape(b, row, (n, c, length), name)


def adaptive_avg_pool2d(b: GraphBuilder, x: str, size: tuple[int, int], name: str) -> str:
    """Average [n, c, y, x] over equal windows, as many as `size` says, which must divide the image."""
    image = b.shape(x)[2:]
    if any(extent % parts for extent, parts in zip(image, size, strict=True)):
        raise GraphError(f"node {name!r}: an image of {image} cannot be cut into {size} equal windows")
    kernel = tuple(extent // parts for extent, parts in zip(image, size, strict=True))
    taps = dict(zip(("dy", "dx"), kernel, strict=True))
    return b.apply("avg_pool2d", x, name=name, kernel=kernel, stride=kernel, padding=(0, 0), extents=taps)
