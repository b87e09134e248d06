"""Cases of element-wise operators. A row gives the domain of a function and its attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from executor.cases import Array, Case, Draw, Generate
from operator_verification.cases.operands import spread
from planner.graph.ir import Value
from tdl.catalog.elementwise import BINARY, BITS, MASKS, OPERATORS, SCALAR, UNARY

SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, 1.0, -1.0])

anywhere, above_zero = Draw.array, Draw.positive


def zero_or_above(draw: Draw, *shape: int) -> Array:
    """Return positive values and zeros."""
    return draw.positive(*shape) * (draw.generator.integers(0, 3, shape) > 0)


def off_zero(draw: Draw, *shape: int) -> Array:
    """Return values of both signs without zero."""
    return draw.positive(*shape) * (2 * draw.generator.integers(0, 2, shape) - 1)


BENT = ("hardsigmoid", "hardswish", "hardtanh", "softplus", "log_sigmoid", "elu", "gelu", "clamp")
"""Piecewise functions, sampled on both sides of their kinks."""

DOMAINS: Mapping[str, Callable[..., Array]] = {
    **dict.fromkeys(("acos", "asin", "atanh"), lambda draw, *shape: draw.generator.integers(-7, 8, shape) / 8),
    **dict.fromkeys(("log10", "log1p", "log2", "rsqrt", "sqrt", "pow_scalar"), above_zero),
    **dict.fromkeys(BENT, lambda draw, *shape: 2.5 * draw.array(*shape)),
    **dict.fromkeys(("reciprocal", "cbrt"), off_zero),
    **dict.fromkeys(("isinf", "isnan"), lambda draw, *shape: SPECIAL[draw.generator.integers(0, len(SPECIAL), shape)]),
    "acosh": lambda draw, *shape: 1 + draw.positive(*shape),
}
"""Domains where functions of one operand are defined (and differentiable), unless that is everywhere."""

ATTRIBUTES: Mapping[str, Callable[[Draw], Mapping[str, Value]]] = {
    "clamp": lambda draw: [{"min": -1.5, "max": 1.0}, {"min": 0.5}, {"max": -0.25}][draw.size(0, 2)],
    "elu": lambda draw: {"alpha": draw.size(1, 3) / 2, "scale": draw.size(1, 3) / 2},
    "gelu": lambda draw: {"approximate": ("none", "tanh")[draw.size(0, 1)]},
    "hardtanh": lambda draw: {"min": -draw.size(1, 3) / 2, "max": draw.size(1, 3) / 2},
    "leaky_relu": lambda draw: {"negative_slope": draw.size(1, 3) / 8},
    "lerp": lambda draw: {"weight": draw.size(1, 7) / 8},
    **dict.fromkeys(SCALAR, lambda draw: {"value": (-2, -1, 1, 2, 3)[draw.size(0, 4)] / 2}),
    "rpow_scalar": lambda draw: {"value": draw.size(1, 6) / 4},
    **dict.fromkeys([name for name in BITS if name.endswith("_scalar")], lambda draw: {"value": draw.size(0, 7)}),
}


def _attributes(draw: Draw, row: str) -> Mapping[str, Value]:
    return ATTRIBUTES[row](draw) if row in ATTRIBUTES else {}


def _one_operand(draw: Draw, row: str, operands: int) -> Case:
    """Draw a case of a unary or scalar row, or of its slope, whose first operand is the gradient."""
    shape = draw.shape()
    arrays = [draw.array(*shape) for _ in range(operands - 1)] + [DOMAINS.get(row, anywhere)(draw, *shape)]
    return Case(tuple(arrays), _attributes(draw, row))


def _two_operands(draw: Draw, row: str, operands: int) -> Case:
    """Draw a case of a binary row or of its slopes. The last operand may lack some of the dimensions."""
    shape = draw.shape()
    arrays = [draw.array(*shape) for _ in range(operands - 2)]
    first = zero_or_above if row == "pow" else anywhere
    last = anywhere if row in ("maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge") else off_zero
    if row == "atan2" and draw.flag():  # zero in either operand, but not in both
        first, last = off_zero, anywhere
    arrays.append(first(draw, *shape))
    return spread(draw, arrays, last)


def _quotient(draw: Draw, row: str, operands: int) -> Case:
    """Draw a case of a remainder or of its slopes, with quotients halfway between its jumps at integers."""
    del row
    shape = draw.shape()
    dims = draw.subset(len(shape)) if draw.flag() else tuple(range(len(shape)))
    b = draw.generator.integers(4, 17, [shape[dim] for dim in dims]) / 8
    b *= 2 * draw.generator.integers(0, 2, b.shape) - 1
    wide = b.transpose(sorted(range(len(dims)), key=lambda j: dims[j]))
    wide = wide.reshape([extent if dim in dims else 1 for dim, extent in enumerate(shape)])
    a = wide * (draw.generator.integers(-2, 2, shape) + 0.5)
    grad = (draw.array(*shape),) if operands == 3 else ()
    return Case((*grad, a, b), {"dims": dims})


def _integers(draw: Draw, row: str, operands: int) -> Case:
    shape = draw.shape()
    arrays = tuple(draw.below(3, *shape) for _ in range(operands))
    if row in MASKS and draw.flag():
        arrays = tuple(array > 0 for array in arrays)
    return Case(arrays, _attributes(draw, row))


def _broadcast_mask(draw: Draw, operands: int) -> Case:
    """Draw a mask over some or all dimensions, for `where` (mask, a, b) or `masked_fill` (x, mask)."""
    shape = draw.shape()
    dims = draw.subset(len(shape)) if draw.flag() else None
    attributes: dict[str, Value] = {} if dims is None else {"dims": dims}
    mask = draw.below(2, *(shape if dims is None else (shape[dim] for dim in dims)))
    mask = mask > 0 if draw.flag() else mask
    if operands == 2:
        return Case((draw.array(*shape), mask), {**attributes, "value": (-1.5, -math.inf)[draw.size(0, 1)]})
    scalar = draw.size(0, 3 if dims is None else 2)  # Without dims the mask has every dimension.
    first, other = (draw.array(*(() if scalar in ways else shape)) for ways in ((1, 3), (2, 3)))
    return Case((mask, first, other), attributes)


def _square(draw: Draw, **attributes: Value) -> Case:
    return Case((draw.array(*draw.shape(0, 2, 1, 3), *draw.sizes(2, 2, 5)),), attributes)


def _diagonal(draw: Draw) -> Case:
    return _square(draw, diagonal=draw.size(-2, 2))


def _dropout(draw: Draw) -> Case:
    step = draw.below(1000)
    row: dict[str, Value] = {"row": draw.size(1, 9)} if draw.flag() else {}
    return Case((draw.array(*draw.shape()), step), {"p": draw.size(1, 7) / 8, "seed": draw.size(0, 5), **row})


def _random(draw: Draw, **attributes: Value) -> Case:
    shape = draw.shape()
    extents = {f"i{dim}": extent for dim, extent in enumerate(shape)}
    attributes |= {"rank": len(shape), "seed": draw.size(0, 5), "dtype": "float64", "extents": extents}
    return Case((draw.below(1000),), attributes)


def _rows(rows: Mapping[str, object], draw: Callable[..., Case]) -> dict[str, Generate]:
    """Return the generators of the operators of rows and of their slopes."""
    generators: dict[str, Generate] = {}
    for row in rows:
        for name in (row, f"{row}_backward"):
            if name in OPERATORS:
                generators[name] = partial(draw, row=row, operands=len(OPERATORS[name].operands))
    return generators


CASES: dict[str, Generate] = {
    **_rows({**UNARY, **SCALAR}, _one_operand),
    **_rows(BINARY, _two_operands),
    **_rows({row: BINARY[row] for row in ("fmod", "remainder")}, _quotient),
    **_rows({**MASKS, **BITS}, _integers),
    "lerp": partial(_one_operand, row="lerp", operands=2),
    "where": partial(_broadcast_mask, operands=3),
    "masked_fill": partial(_broadcast_mask, operands=2),
    "causal_mask": partial(_square, value=-64.0),
    "tril": _diagonal,
    "triu": _diagonal,
    "dropout": _dropout,
    "bernoulli": partial(_random, p=0.25),
    "rand": _random,
    "randn": _random,
}
