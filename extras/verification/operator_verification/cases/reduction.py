"""Cases of reductions and of operators built on them: normalization, softmax, losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from executor.cases import Array, Case, Draw, Generate
from planner.graph.ir import Value
from tdl.catalog.compound import LOSSES

KEPT_AND_REDUCED = ((0, 1), (1, 1), (0, 2), (1, 2), (3, 1), (2, 2), (1, 3), (0, 4))
"""Numbers of kept and of reduced dimensions."""


def _dims(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Draw a shape, the dimensions to reduce, and the number of elements per result."""
    kept, reduced = KEPT_AND_REDUCED[draw.size(0, len(KEPT_AND_REDUCED) - 1)]
    dims = draw.ascending(kept + reduced, reduced)
    shape = draw.sizes(kept + reduced, 2, 4)
    return shape, dims, int(np.prod([shape[dim] for dim in dims]))


def _reduction(
    draw: Draw, operands: str = "x", values: Callable[..., Array] = Draw.array, counts: bool = False
) -> Case:
    """Return operands by letter: "x" values, "e" their extremes, "m" and "g" one number per result."""
    shape, dims, count = _dims(draw)
    known = {"x": values(draw, *shape)}
    known["e"] = known["x"].max(axis=dims)
    known |= {letter: draw.array(*known["e"].shape) for letter in "mg" if letter in operands}
    attributes: dict[str, Value] = {"dims": dims, "count": count} if counts else {"dims": dims}
    return Case(tuple(known[letter] for letter in operands), attributes)


def _extreme_backward(draw: Draw) -> Case:
    case = _reduction(draw, operands="gxe")
    return replace(case, attributes={**case.attributes, "chosen": draw.flag()})


def _mask(draw: Draw, *shape: int) -> Array:
    return draw.below(draw.size(1, 4), *shape)


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


def _batch_norm(draw: Draw, operands: str, *, eps: bool = True, counts: bool = False) -> Case:
    """Return operands by letter: "x" images, "g" gradients, "m" means, "v" variances, others per channel."""
    shape = draw.sizes(4, 2, 4)
    known = {letter: draw.array(*shape) for letter in "xg"}
    known |= {letter: draw.array(shape[1]) for letter in "mbwo"} | {"v": draw.positive(shape[1])}
    attributes: dict[str, Value] = {"eps": 1e-3} if eps else {}
    attributes |= {"count": known["x"][:, 0].size} if counts else {}
    return Case(tuple(known[letter] for letter in operands), attributes)


NORMS = (((0, 1), (2,)), ((0, 1), (1, 2)), ((0, 1), (1,)), ((1,), (1,)), ((0,), (2, 1)), ((), (0, 1, 2)))
"""Dimensions of statistics and of weights, for rank 3: layer, group, instance and batch norm, and two more."""


def _normalize(draw: Draw, operands: str, *, counts: bool = False) -> Case:
    """Return operands by letter: "g" gradients, "x" values, "m", "v" statistics, "w", "b" weights, "s", "t" sums."""
    shape = draw.sizes(3, 2, 5)
    statistics, weights = NORMS[draw.size(0, len(NORMS) - 1)]
    s, w = ([shape[dim] for dim in dims] for dims in (statistics, weights))
    known = {"g": draw.array(*shape), "x": draw.array(*shape), "m": draw.array(*s), "v": draw.positive(*s)}
    known |= {"w": draw.array(*w), "b": draw.array(*w), "s": draw.array(*s), "t": draw.array(*s)}
    attributes: dict[str, Value] = {"statistics": statistics, "weights": weights, "eps": 1e-3}
    attributes |= {"count": int(np.prod(shape) / np.prod(s, dtype=int))} if counts else {}
    return Case(tuple(known[letter] for letter in operands), attributes)


def _rms_norm(draw: Draw, operands: str, **attributes: Value) -> Case:
    """Return operands by letter: "g" gradients, "x" values, "q" squares and "s" sums of rows, "w" weights."""
    *rows, width = draw.shape()
    known = {letter: draw.array(*rows, width) for letter in "gx"}
    known |= {"q": draw.positive(*rows), "s": draw.array(*rows), "w": draw.array(width)}
    attributes |= {"count": width} if "count" in attributes else {}
    return Case(tuple(np.asarray(known[letter]) for letter in operands), attributes)


def _softmax(draw: Draw, operands: str) -> Case:
    """Return operands by letter: "x" logits, "m" maximum, "t" total, "g" gradient, "r" softmax, "i" per row."""
    shape = draw.shape()
    dim = draw.size(-len(shape), len(shape) - 1)
    x = draw.array(*shape)
    exponentials = np.exp(x - x.max(axis=dim, keepdims=True))
    total = exponentials.sum(axis=dim)
    known = {"x": x, "g": draw.array(*shape), "m": x.max(axis=dim), "t": total, "i": draw.array(*total.shape)}
    known["r"] = exponentials / np.expand_dims(total, dim)
    return Case(tuple(np.asarray(known[letter]) for letter in operands), {"dim": dim})


def _cross_entropy(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 3, 2, 6)
    dim = draw.size(-len(shape), len(shape) - 1)
    x, classes = draw.array(*shape), shape[dim]
    maximum = np.asarray(x.max(axis=dim))
    total = np.asarray(np.exp(x - x.max(axis=dim, keepdims=True)).sum(axis=dim))
    labels, count = draw.below(classes, *maximum.shape), maximum.size
    return {
        "cross_entropy": Case((x, maximum, total, labels), {"count": count, "dim": dim}, extents={"c": classes}),
        "cross_entropy_backward": Case((x, maximum, total, labels), {"factor": 1 / count, "dim": dim}),
        "nll_loss": Case((x, labels), {"count": count, "dim": dim}, extents={"c": classes}),
        "nll_loss_backward": Case((draw.array(), labels), {"count": count, "dim": dim, "extents": {"c": classes}}),
    }[name]


def _loss(draw: Draw, name: str, *, backward: bool) -> Case:
    shape = draw.shape(1, 3, 2, 5)
    within = name == "binary_cross_entropy"
    x = draw.generator.integers(1, 8, shape) / 8 if within else draw.array(*shape)
    probable = name in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
    target = draw.generator.integers(1, 8, shape) / 8 if probable else draw.array(*shape)
    operands = (draw.array(), x, target) if backward else (x, target)
    return Case(operands, {"count": int(np.prod(shape))})


OF_LABELS = ("cross_entropy", "cross_entropy_backward", "nll_loss", "nll_loss_backward")

CASES: dict[str, Generate] = {
    **dict.fromkeys(("sum", "amax", "amin"), _reduction),
    "mean": partial(_reduction, counts=True),
    "prod": partial(_reduction, values=Draw.positive),
    **dict.fromkeys(("any", "all"), partial(_reduction, values=_mask)),
    "var": partial(_reduction, operands="xm", counts=True),
    "var_backward": partial(_reduction, operands="gxm", counts=True),
    "count_extremes": partial(_reduction, operands="xe"),
    "extreme_backward": _extreme_backward,
    "cumsum": _cumulative,
    "expand": _expand,
    "batch_norm_var": partial(_batch_norm, operands="xm", eps=False, counts=True),
    "batch_norm": partial(_batch_norm, operands="xmvwb"),
    "batch_norm_backward_reduce": partial(_batch_norm, operands="gxmv"),
    "batch_norm_backward": partial(_batch_norm, operands="gxmvwob", counts=True),
    "normalize": partial(_normalize, operands="xmvwb"),
    "normalize_backward_weights": partial(_normalize, operands="gxmv"),
    "normalize_backward_statistics": partial(_normalize, operands="gxmvw"),
    "normalize_backward": partial(_normalize, operands="gxmvwst", counts=True),
    "mean_square": partial(_rms_norm, operands="x", count=0),
    "rms_norm": partial(_rms_norm, operands="xqw", eps=1e-3),
    "rms_norm_backward_weight": partial(_rms_norm, operands="gxq", eps=1e-3),
    "rms_norm_backward_sum": partial(_rms_norm, operands="gxw"),
    "rms_norm_backward": partial(_rms_norm, operands="gxqws", eps=1e-3, count=0),
    "sum_exp": partial(_softmax, operands="xm"),
    **dict.fromkeys(("softmax", "log_softmax"), partial(_softmax, operands="xmt")),
    "softmax_backward_sum": partial(_softmax, operands="gr"),
    "softmax_backward": partial(_softmax, operands="gri"),
    "log_softmax_backward": partial(_softmax, operands="gxi"),
    **{name: partial(_cross_entropy, name=name) for name in OF_LABELS},
    **{name: partial(_loss, name=name, backward=False) for name in LOSSES},
    **{f"{name}_backward": partial(_loss, name=name, backward=True) for name in LOSSES},
}
