"""Random valid operands and attributes for every operator that is described without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from math import prod

import numpy as np
from operator_verification.cases.operands import positive_shape, same_shape

from executor.cases import Case, Draw, Generate
from results.operator_coverage.operators.spatial import LOWEST

SIZES = (2, 4)


def drawn(make: Callable[..., Case]) -> Generate:
    """Draw a case by a function of a source of values and of sizes; a size is of SIZES, or of its default's range."""
    _, *sizes = signature(make).parameters.values()
    ranges = {size.name: SIZES if size.default is Parameter.empty else size.default for size in sizes}
    ways = {name: high - low + 1 for name, (low, high) in ranges.items()}

    def generate(draw: Draw) -> Case:
        number, chosen = draw.size(0, prod(ways.values()) - 1), {}
        for name, count in ways.items():
            chosen[name] = ranges[name][0] + number % count
            number //= count
        return make(draw, **chosen)

    return generate


def _quantized(draw, **attributes):
    """A tensor and two numbers above zero."""
    return Case((draw.array(*draw.shape()), draw.positive(), 2 + draw.positive()), attributes)


def _moments(draw, count, **attributes):
    """Operands of an optimizer, of which the last is a mean of squares."""
    shape = draw.shape()
    return Case((*(draw.array(*shape) for _ in range(count - 1)), draw.positive(*shape)), attributes)


def _partly_empty(draw):
    x = draw.array(*draw.shape())
    return Case((np.where(x < 0, LOWEST, x),))


POSITIVE = dict.fromkeys(("gamma", "lgamma"), positive_shape)
ELEMENTWISE = (
    POSITIVE
    | {name: partial(same_shape, count=1) for name in ("round_away", "degrees", "radians")}
    | dict.fromkeys(("smooth_l1", "hypotenuse_scalar"), partial(same_shape, count=1, scalar=1.5))
    | dict.fromkeys(("quantize_linear", "dequantize_linear"), partial(_quantized, levels=255))
    | {
        "remainder_by": partial(same_shape, count=1, scalar=1.5),
        "clear_empty": _partly_empty,
        "sgd_update": partial(same_shape, count=2, lr=0.1, wd=0.01, clip=0.5),
        "sgd_momentum_update": partial(same_shape, count=3, lr=0.1, momentum=0.9, wd=0.01),
        "adam_update": partial(_moments, count=4, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-3, wd=0.01),
        "rmsprop_update": partial(_moments, count=3, lr=0.1, decay=0.95, eps=1e-3, wd=0.01, rescale=0.5),
        "rmsprop_centered_update": partial(
            same_shape, count=5, lr=0.1, decay=0.95, momentum=0.9, eps=1e-3, wd=0.01, rescale=0.5, clip=0.5
        ),
    }
)


def _extents(shape, prefix="i"):
    return {f"{prefix}{dim}": extent for dim, extent in enumerate(shape)}


def _filled(draw):
    shape = draw.shape()
    return Case((), {"value": 1.5, "rank": len(shape), "extents": _extents(shape)})


def _tile(draw):
    shape = draw.shape(1, 3, 2, 3)
    times = draw.sizes(len(shape), 1, 3)
    return Case((draw.array(*shape),), {"extents": _extents(times, "r")})


def _broadcast_axes(draw):
    shape = draw.shape()
    dims = draw.subset(len(shape), 1)
    kept = [1 if dim in dims else extent for dim, extent in enumerate(shape)]
    return Case((draw.array(*kept),), {"dims": dims, "extents": {f"i{dim}": shape[dim] for dim in dims}})


def along(draw, extent, dim, *others):
    """A tensor with a dimension of an extent among two others."""
    return draw.array(*others[:dim], extent, *others[dim:])


def _pad_mirror(draw, *, low=(0, 2), high=(0, 2), size=(2, 4), dim=(0, 2), edge=(0, 1), b=(2, 3), c=(2, 3)):
    attributes = {"dim": dim, "low": min(low, size - 1), "high": min(high, size - 1), "size": size, "edge": edge == 1}
    return Case((along(draw, size, dim, b, c),), attributes)


def _strided(draw, begin, step, count, rest):
    """A matrix in which places of both dimensions are taken, and the attributes that say which."""
    taken = [b + s * n for b, s, n in zip(begin, step, count, strict=True)]
    return draw.array(taken[0] + rest, taken[1]), {"begin": begin, "step": step, "count": count}


def _strided_assign(draw, *, b=(0, 2), c=(0, 1), s=(1, 3), t=(1, 3), n=(1, 3), m=(1, 2), rest=(0, 2)):
    x, attributes = _strided(draw, (b, c), (s, t), (n, m), rest)
    return Case((x, draw.array(n, m)), attributes)


def _strided_fill(draw, *, b=(0, 2), c=(0, 1), s=(1, 3), t=(1, 3), n=(1, 3), m=(1, 2), rest=(0, 2)):
    x, attributes = _strided(draw, (b, c), (s, t), (n, m), rest)
    return Case((x,), {**attributes, "value": 1.5})


LAYOUT = {
    "filled": _filled,
    "tile": _tile,
    "broadcast_axes": _broadcast_axes,
    "pad_mirror": drawn(_pad_mirror),
    "strided_assign": drawn(_strided_assign),
    "strided_fill": drawn(_strided_fill),
    "repeat_each": drawn(
        lambda d, axis=(0, 2), times=(1, 3), n=(2, 4), b=(2, 4), c=(2, 3): Case(
            (along(d, n, axis, b, c),), {"axis": axis, "times": times}
        )
    ),
    "window_of": drawn(
        lambda d, i, j, along=(1, 3), across=(1, 3), offset=(0, 2): Case(
            (d.array(offset + along * (i - 1) + across * (j - 1) + 1),),
            {"strides": (along, across), "offset": offset, "extents": {"i0": i, "i1": j}},
        )
    ),
    "select_scatter": drawn(
        lambda d, dim=(0, 2), n=(2, 4), b=(2, 4), c=(2, 4), index=(0, 1): Case(
            (along(d, n, dim, b, c), d.array(b, c)), {"dim": dim, "index": index}
        )
    ),
    "upper_pairs": drawn(lambda d, i=(2, 9), j=(2, 9): Case((d.array(i, j),), {"n": max(i, j)})),
    "channel_window": drawn(lambda d, n, c, y, x, reach=(1, 2): Case((d.array(n, c, y, x),), {"reach": reach})),
}

MATRIX = {
    "trmm": drawn(lambda d, n, b, c, j: Case((d.array(n, b, c), d.array(n, c, j)), {"alpha": 0.5})),
    "distance": drawn(lambda d, i=(2, 6), j=(2, 6), k=(2, 6): Case((d.array(i, k), d.array(j, k)), {"p": 2.0})),
    "sum_log_diagonal": drawn(lambda d, n=(2, 9), r=(2, 9): Case((d.positive(n, r, r),))),
}


def _regular(draw, *shape):
    """Square matrices, far from singular."""
    return np.tril(draw.array(*shape)) / 4 + 2 * np.eye(shape[-1])


def _definite(draw, *shape):
    root = _regular(draw, *shape)
    return root @ root.swapaxes(-1, -2)


_SPECTRA = (2, 8)

OPAQUE = {
    "fft_last": drawn(lambda d, b, c, n=_SPECTRA: Case((d.array(b, c, n),), {"length": n})),
    "ifft_last": drawn(lambda d, b, c, n=_SPECTRA: Case((d.array(b, c, 2 * n),), {"length": n})),
    "rfft_last": drawn(lambda d, b, c, n=_SPECTRA: Case((d.array(b, c, n),), {"length": n})),
    "irfft_last": drawn(lambda d, b, c, n=_SPECTRA: Case((d.array(b, c, 2 * (n // 2 + 1)),), {"length": n})),
    "potrf": drawn(lambda d, b, c, n=(2, 8): Case((_definite(d, b, c, n, n),))),
    "potri": drawn(lambda d, b, c, n=(2, 8): Case((_regular(d, b, c, n, n),))),
    "trsm": drawn(
        lambda d, b, n=(2, 6), k=(2, 6), transpose=(0, 1): Case(
            (_regular(d, b, n, n), d.array(b, n, k)), {"alpha": 0.5, "transpose": transpose == 1}
        )
    ),
}


def _random(draw, **attributes):
    shape = draw.shape(1, 3, 2, 5)
    return Case((), {**attributes, "rank": len(shape), "seed": draw.size(0, 5), "extents": _extents(shape)})


def _samples(draw, operands, **attributes):
    """A row of numbers for every element of the parameters."""
    shape = draw.shape(1, 3)
    parameters = tuple(draw.positive(*shape) for _ in range(operands))
    return Case(parameters, {**attributes, "draws": draw.size(2, 4), "seed": draw.size(0, 5)})


RANDOM = {
    "random_exponential": partial(_random, rate=2.0),
    "random_rejection": partial(_random, distribution="gamma", parameters=(2.0, 0.5)),
    "sample_uniform": partial(_samples, operands=2),
    "sample_normal": partial(_samples, operands=2),
    "sample_exponential": partial(_samples, operands=1),
    "sample_rejection": partial(_samples, operands=2, distribution="gamma"),
    "sample_choice": drawn(
        lambda d, b, c, n, draws=(2, 4): Case((d.positive(b, c, n),), {"draws": draws, "seed": d.size(0, 5)})
    ),
}

CASES: Mapping[str, Generate] = {**ELEMENTWISE, **LAYOUT, **MATRIX, **OPAQUE, **RANDOM}
