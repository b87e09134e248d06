"""Random valid operands and attributes for every operator of the catalog, small enough to enumerate."""

from __future__ import annotations

from functools import partial

import numpy as np

from executor.cases import Case, Draw, Generate
from operator_verification.cases import attention, pointwise, reduction, shape, windows
from operator_verification.cases.operands import binary, positive_shape, same_shape
from planner.graph.ir import FLOATING, Value

__all__ = ["CASES"]


def _adam(draw: Draw, **more: Value) -> Case:
    shape = draw.shape()
    moments = (draw.array(*shape), draw.positive(*shape))
    step = np.asarray(float(draw.size(1, 20)))
    attributes: dict[str, Value] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-3, **more}
    return Case((draw.array(*shape), draw.array(*shape), *moments, step), attributes)


def _by_root(draw: Draw, **attributes: Value) -> Case:
    """Return operands of an optimizer that keeps squares of gradients."""
    shape = draw.shape()
    return Case((draw.array(*shape), draw.array(*shape), draw.positive(*shape)), {"lr": 0.1, "eps": 1e-3, **attributes})


def _cast(draw: Draw) -> Case:
    x, dtype = draw.array(*draw.shape()), (*FLOATING, "int32", "bool")[draw.size(0, 5)]
    return Case(((x, (4 * x).astype(np.int32), x > 0)[draw.size(0, 2)],), {"dtype": dtype})


def _product(draw: Draw, batch_dims: int) -> Case:
    *batch, i, j, k = draw.sizes(batch_dims + 3)
    transpose_a, transpose_b = draw.flag(), draw.flag()
    a = draw.array(*batch, *((k, i) if transpose_a else (i, k)))
    b = draw.array(*batch, *((j, k) if transpose_b else (k, j)))
    return Case((a, b), {"transpose_a": transpose_a, "transpose_b": transpose_b})


def _grouped(draw: Draw, *, backward: bool = False) -> Case:
    """Return rows and matrices of groups; some rows are of no group."""
    groups, rows, n, k = draw.size(), draw.shape(most=2), draw.shape(most=2, high=3), draw.shape(most=2, high=3)
    indices = draw.below(groups + 1, *rows)
    if backward:
        return Case((draw.array(*rows, *k), draw.array(*rows, *n), indices), {"extents": {"g": groups}})
    transpose = draw.flag()
    matrices = draw.array(groups, *((*n, *k) if transpose else (*k, *n)))
    return Case((draw.array(*rows, *k), matrices, indices), {"transpose": transpose})


EQUATIONS = (
    "bi,ghi->bgh", "bgh,ghi->bi", "bi,bgh->ghi", "bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd", "bhqk,bhqd->bhkd",
    "ai,bi,i->ab", "ij,jk,kl->il", "ab,b,ac,d->cad",
    "ij->ji", "ijk->j", "i,j->ij", "i,j->ji", "abc,ab->c", "abd,cb->adc", "ijk,k->ji", "ab,ab->a",
)  # fmt: skip


def _einsum(draw: Draw) -> Case:
    equation = EQUATIONS[draw.size(0, len(EQUATIONS) - 1)]
    letters = tuple(dict.fromkeys(letter for letter in equation if letter.isalpha()))
    extents = dict(zip(letters, draw.sizes(len(letters), 2, 5), strict=True))
    terms = equation.split("->")[0].split(",")
    return Case(tuple(draw.array(*(extents[c] for c in term)) for term in terms), {"equation": equation})


CASES: dict[str, Generate] = {
    **attention.CASES,
    **pointwise.CASES,
    **reduction.CASES,
    **shape.CASES,
    **windows.CASES,
    **{name: partial(same_shape, count=1) for name in ("relu", "sigmoid", "tanh", "exp", "neg")},
    "log": positive_shape,
    **{name: partial(same_shape, count=2) for name in ("threshold_backward", "sigmoid_backward", "tanh_backward")},
    **dict.fromkeys(("add", "sub", "mul", "div"), binary),
    "add_n": lambda draw: same_shape(draw, draw.size(1, 4)),
    "scale": partial(same_shape, count=1, factor=0.75),
    "cast": _cast,
    "sgd": partial(same_shape, count=2, lr=0.1),
    "sgd_momentum": partial(same_shape, count=3, lr=0.1, momentum=0.9),
    "increment": lambda draw: Case((draw.array(),)),
    "adam": _adam,
    "adamw": partial(_adam, decay=0.25),
    "rmsprop": partial(_by_root, alpha=0.75),
    "adagrad": _by_root,
    "mm": partial(_product, batch_dims=0),
    "bmm": partial(_product, batch_dims=1),
    "grouped_mm": _grouped,
    "grouped_mm_backward": partial(_grouped, backward=True),
    "einsum": _einsum,
}
"""Generators of cases, by operator. An operator without one cannot be verified."""
