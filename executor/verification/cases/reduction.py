"""Cases of reductions and of what is built on them: normalization, softmax, losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from executor.cases import Array, Case, Draw, Generate
from planner.graph.ir import Value
from tdl.catalog.loss import LOSSES

KEPT_AND_REDUCED = ((0, 1), (1, 1), (0, 2), (1, 2), (3, 1), (2, 2), (1, 3), (0, 4))
"""How many dimensions are kept and reduced."""


def _dims(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Draw a shape, the dimensions to reduce, and how many elements go into one result."""
    kept, reduced = KEPT_AND_REDUCED[draw.size(0, len(KEPT_AND_REDUCED) - 1)]
    dims = draw.ascending(kept + reduced, reduced)
    shape = draw.sizes(kept + reduced, 2, 4)
    return shape, dims, int(np.prod([shape[dim] for dim in dims]))


def _reduction(draw: Draw, values: Callable[..., Array] = Draw.array) -> Case:
    shape, dims, _ = _dims(draw)
    return Case((values(draw, *shape),), {"dims": dims})


def _mean(draw: Draw) -> Case:
    shape, dims, count = _dims(draw)
    return Case((draw.array(*shape),), {"dims": dims, "count": count})


def _mask(draw: Draw, *shape: int) -> Array:
    return draw.below(draw.size(1, 4), *shape)


def _variance(draw: Draw, *, backward: bool) -> Case:
    shape, dims, count = _dims(draw)
    kept = [extent for dim, extent in enumerate(shape) if dim not in dims]
    operands = (draw.array(*shape), draw.array(*kept))
    attributes: dict[str, Value] = {"dims": dims, "count": count}
    return Case((draw.array(*kept), *operands) if backward else operands, attributes)


def _extreme(draw: Draw, *, backward: bool) -> Case:
    shape, dims, _ = _dims(draw)
    x = draw.array(*shape)
    operands = (x, x.max(axis=dims))
    return Case((draw.array(*operands[1].shape), *operands) if backward else operands, {"dims": dims})


def _cumulative(draw: Draw) -> Case:
    shape = draw.shape(1, 3, 2, 5)
    dim = draw.size(0, len(shape) - 1)
    extents: dict[str, Value] = {f"i{dim}": shape[dim]}
    return Case((draw.array(*shape),), {"dim": dim, "reverse": draw.flag(), "extents": extents})


def _expand(draw: Draw) -> Case:
    shape, dims, _ = _dims(draw)
    kept = [extent for dim, extent in enumerate(shape) if dim not in dims]
    extents: dict[str, Value] = {f"e{place}": shape[dim] for place, dim in enumerate(dims)}
    return Case((draw.array(*kept),), {"dims": dims, "factor": 0.25, "extents": extents})


def _batch_norm(draw: Draw, name: str) -> Case:
    shape = draw.sizes(4, 2, 4)
    full, channels, count = draw.array(*shape), shape[1], shape[0] * shape[2] * shape[3]
    grad, mean, bias = draw.array(*shape), draw.array(channels), draw.array(channels)
    variance, weight, other = draw.positive(channels), draw.array(channels), draw.array(channels)
    return {
        "var": Case((full, mean), {"count": count}),
        "forward": Case((full, mean, variance, weight, bias), {"eps": 1e-3}),
        "reduce": Case((grad, full, mean, variance), {"eps": 1e-3}),
        "backward": Case((grad, full, mean, variance, weight, other, bias), {"eps": 1e-3, "count": count}),
    }[name]


NORMS = (((0, 1), (2,)), ((0, 1), (1, 2)), ((0, 1), (1,)), ((1,), (1,)), ((0,), (2, 1)), ((), (0, 1, 2)))
"""Dimensions of statistics, and of weights, of rank 3: layer, group, instance, batch norm, and two more."""


def _normalize(draw: Draw, name: str) -> Case:
    shape = draw.sizes(3, 2, 5)
    statistics, weights = NORMS[draw.size(0, len(NORMS) - 1)]
    s, w = ([shape[dim] for dim in dims] for dims in (statistics, weights))
    grad, x, mean, var = draw.array(*shape), draw.array(*shape), draw.array(*s), draw.positive(*s)
    weight, bias = draw.array(*w), draw.array(*w)
    attributes: dict[str, Value] = {"statistics": statistics, "weights": weights, "eps": 1e-3}
    count = int(np.prod(shape) / np.prod(s, dtype=int))
    return {
        "forward": Case((x, mean, var, weight, bias), attributes),
        "weights": Case((grad, x, mean, var), attributes),
        "statistics": Case((grad, x, mean, var, weight), attributes),
        "backward": Case((grad, x, mean, var, weight, draw.array(*s), draw.array(*s)), attributes | {"count": count}),
    }[name]


def _softmax(draw: Draw, operands: str) -> Case:
    """Operands by letter: "x" logits, "m" maximum, "t" total, "g" gradient, "r" softmax, "i" one number per row."""
    shape = draw.shape()
    dim = draw.size(-len(shape), len(shape) - 1)
    x = draw.array(*shape)
    exponentials = np.exp(x - x.max(axis=dim, keepdims=True))
    total = exponentials.sum(axis=dim)
    known = {"x": x, "g": draw.array(*shape), "m": x.max(axis=dim), "t": total, "i": draw.array(*total.shape)}
    known["r"] = exponentials / np.expand_dims(total, dim)
    return Case(tuple(np.asarray(known[letter]) for letter in operands), {"dim": dim})


def _cross_entropy(draw: Draw, name: str) -> Case:
    batch, classes = draw.sizes(2, 2, 9)
    x, labels = draw.array(batch, classes), draw.below(classes, batch)
    maximum = x.max(axis=1)
    total = np.exp(x - maximum[:, None]).sum(axis=1)
    return {
        "forward": Case((x, maximum, total, labels), {"count": batch}, extents={"c": classes}),
        "backward": Case((x, maximum, total, labels), {"factor": 1 / batch}),
        "nll": Case((x, labels), {"count": batch}, extents={"c": classes}),
        "nll_backward": Case((draw.array(), labels), {"count": batch, "extents": {"c": classes}}),
    }[name]


def _loss(draw: Draw, name: str, *, backward: bool) -> Case:
    shape = draw.shape(1, 3, 2, 5)
    within = name == "binary_cross_entropy"
    x = draw.generator.integers(1, 8, shape) / 8 if within else draw.array(*shape)
    probable = name in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
    target = draw.generator.integers(1, 8, shape) / 8 if probable else draw.array(*shape)
    operands = (draw.array(), x, target) if backward else (x, target)
    return Case(operands, {"count": int(np.prod(shape))})


CASES: dict[str, Generate] = {
    "sum": _reduction,
    "mean": _mean,
    "amax": _reduction,
    "amin": _reduction,
    "prod": partial(_reduction, values=Draw.positive),
    **dict.fromkeys(("any", "all"), partial(_reduction, values=_mask)),
    "var": partial(_variance, backward=False),
    "var_backward": partial(_variance, backward=True),
    "count_extremes": partial(_extreme, backward=False),
    "extreme_backward": partial(_extreme, backward=True),
    "cumsum": _cumulative,
    "expand": _expand,
    "batch_norm_var": partial(_batch_norm, name="var"),
    "batch_norm": partial(_batch_norm, name="forward"),
    "batch_norm_backward_reduce": partial(_batch_norm, name="reduce"),
    "batch_norm_backward": partial(_batch_norm, name="backward"),
    "normalize": partial(_normalize, name="forward"),
    "normalize_backward_weights": partial(_normalize, name="weights"),
    "normalize_backward_statistics": partial(_normalize, name="statistics"),
    "normalize_backward": partial(_normalize, name="backward"),
    "sum_exp": partial(_softmax, operands="xm"),
    "softmax": partial(_softmax, operands="xmt"),
    "softmax_backward_sum": partial(_softmax, operands="gr"),
    "softmax_backward": partial(_softmax, operands="gri"),
    "log_softmax": partial(_softmax, operands="xmt"),
    "log_softmax_backward": partial(_softmax, operands="gxi"),
    "cross_entropy": partial(_cross_entropy, name="forward"),
    "cross_entropy_backward": partial(_cross_entropy, name="backward"),
    "nll_loss": partial(_cross_entropy, name="nll"),
    "nll_loss_backward": partial(_cross_entropy, name="nll_backward"),
    **{name: partial(_loss, name=name, backward=False) for name in LOSSES},
    **{f"{name}_backward": partial(_loss, name=name, backward=True) for name in LOSSES},
}
