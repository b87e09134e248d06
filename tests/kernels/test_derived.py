"""Kernels derived from descriptions: memory that is shared, attributes that change, what no kernel is derived of."""

from functools import partial
from itertools import permutations

import numpy as np
import pytest

import tdl
from executor.kernels import KERNELS, KernelCall
from executor.kernels.derived import DerivedKernel
from planner.errors import DataError
from tdl.catalog import _operators

SHAPE = (3, 50)


def operands_of(name, count):
    return [np.random.default_rng([len(name), number]).uniform(0.5, 2, SHAPE) for number in range(count)]


def called(kernel, operands, outs, **attributes):
    kernel(KernelCall(np, tuple(operands), tuple(outs), attributes, {}, ()))


ALIASED = {
    "sgd_momentum": {"lr": 0.1, "momentum": 0.9},
    "maximum_backward": {},
    "prelu_backward": {},
    "silu_backward": {},
    "lerp": {"weight": 0.25},
}


@pytest.mark.parametrize("name", ALIASED)
def test_outputs_may_be_the_memory_of_any_operands(monkeypatch, name):
    monkeypatch.setattr("executor.kernels.call.BLOCK_ELEMENTS", 16)
    attributes, operator = ALIASED[name], tdl.catalog[name]
    operands = operands_of(name, len(operator.operands))
    expected = operator.describe([2] * len(operands), attributes).evaluate(operands, attributes)
    for places in permutations(range(len(operands)), len(expected)):
        copies = [operand.copy() for operand in operands]
        outs = [copies[place] for place in places]
        called(KERNELS[name], copies, outs, **attributes)
        for out, values in zip(outs, expected, strict=True):
            np.testing.assert_allclose(out, values, rtol=1e-12, atol=1e-14)


def test_a_learning_rate_may_change_from_run_to_run():
    (weight, grad), out, attributes = operands_of("sgd", 2), np.empty(SHAPE), {"lr": 0.5}
    call = KernelCall(np, (weight, grad), (out,), attributes, {}, ())
    for rate in (0.5, 0.25, np.full((), 0.125, np.float32)):
        attributes["lr"] = rate
        KERNELS["sgd"](call)
        np.testing.assert_allclose(out, weight - float(rate) * grad, rtol=1e-15)


def test_numbers_of_no_dimension_are_computed_with_in_double_precision():
    ones, count = np.ones(4, np.float32), np.ones((), np.float32)
    outs = [np.empty(4, np.float32) for _ in range(3)]
    attributes = {"lr": 1.0, "beta1": 0.9, "beta2": 0.999999, "eps": 0.0}
    called(KERNELS["adam"], (0 * ones, ones, 0 * ones, 0 * ones, count), outs, **attributes)
    np.testing.assert_allclose(outs[0], -1.0, rtol=1e-6)  # the first step's root of squares is the gradient


@pytest.mark.parametrize(
    ("describe", "reason"),
    [
        (lambda x: lambda i: x[i + 1], "no index of distinct variables"),
        (lambda x: lambda i: tdl.Max(lambda j: x[i, j]), "no kernel is derived"),
        (lambda x: lambda i, j: x[i, j] / tdl.Sum(lambda k: x[i, k]), "sums of what depends on all"),
    ],
)
def test_other_descriptions_are_refused(describe, reason):
    rank = 1 if "distinct" in reason else 2
    operator = tdl.op(describe)
    x = np.ones((4,) * rank)
    with pytest.raises(tdl.TDLError, match=reason):
        called(DerivedKernel(operator), (x,), (np.empty((4,) * rank),))


WHOLE = {"pow_scalar": (2, np.square), "bitwise_and_scalar": (3, lambda x: x & 3), "add_scalar": (2, lambda x: x + 2)}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_computed_exactly_and_have_room(name):
    (value, expected), x = WHOLE[name], np.array([46340, -3, 0, 7, 2**31 - 1], np.int32)
    out = np.empty_like(x[:4])  # it has room for the square of the first
    called(KERNELS[name], (x[:4],), (out,), value=value)
    np.testing.assert_array_equal(out, expected(x[:4].astype("int64")))
    if "bitwise" not in name:
        with pytest.raises(DataError):
            called(KERNELS[name], (x[1:],), (out,), value=value)


def test_the_gradient_of_x_to_the_power_0_has_the_dtype_of_x():
    description = tdl.catalog["pow_scalar_backward"].describe([1, 1], {"value": 0})
    assert description.output_dtypes(["float32", "float32"]) == ("float32",)


@tdl.op(category="reduction")
def derived_distance(x, centers):
    return lambda b, k: tdl.Sum(lambda d: (x[b, d] - centers[k, d]) ** 2)


def test_an_operator_of_ones_own_has_the_kernel_of_its_description(monkeypatch):
    monkeypatch.setattr("executor.kernels.call.BLOCK_ELEMENTS", 16)
    monkeypatch.setitem(_operators, "derived_distance", derived_distance)
    x, centers = np.random.default_rng(0).normal(size=(2, 9, 5))
    out, ranges = np.empty((9, 9)), {"b": (0, 9), "k": (0, 9), "d": (0, 5)}
    KERNELS["derived_distance"](KernelCall(np, (x, centers), (out,), {}, ranges, ((0, 0), (0, 0))))
    np.testing.assert_allclose(out, np.linalg.norm(x[:, None] - centers, axis=2) ** 2, rtol=1e-12)
    assert "no such operator" not in KERNELS


def every_other(x):
    wide = np.empty((*x.shape, 2), x.dtype)[..., 0]
    wide[...] = x
    return wide


def off_by_one(x):
    placed = np.empty(x.size + 1, x.dtype)[1:].reshape(x.shape)
    placed[...] = x
    return placed


PLACED = {
    "batch_norm_backward_reduce": ([(6, 5, 7, 3), (6, 5, 7, 3), (5,), (5,)], {"eps": 1e-5}),
    "softmax_backward_sum": ([(9, 5, 37), (9, 5, 37)], {}),
    "normalize_backward_weights": (
        [(9, 5, 37), (9, 5, 37), (9, 5), (9, 5)], {"statistics": (0, 1), "weights": (2,), "eps": 1e-5},
    ),
    "rms_norm_backward_weight": ([(9, 5, 37), (9, 5, 37), (9, 5)], {"eps": 1e-5}),
    "sum_exp": ([(9, 5, 37), (9, 5)], {}),
    "var": ([(9, 37, 5), (9, 5)], {"dims": (1,), "count": 37}),
    "softmax": ([(9, 5, 37), (9, 5), (9, 5)], {}),
    "adam": ([*[(9, 37)] * 4, ()], {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}),
}  # fmt: skip
"""Shapes of operands, and attributes."""


@pytest.mark.parametrize("name", PLACED)
def test_where_arrays_lie_in_memory_changes_no_bit(monkeypatch, name):
    monkeypatch.setattr("executor.kernels.call.BLOCK_ELEMENTS", 64)
    shapes, attributes = PLACED[name]
    operands = [np.random.default_rng(n).uniform(0.5, 2, shape).astype("float32") for n, shape in enumerate(shapes)]
    description = tdl.catalog[name].describe([len(shape) for shape in shapes], attributes)
    results = []
    for placed in (np.array, partial(np.array, order="F"), every_other, off_by_one):
        sizes = description.output_shapes(description.extents(shapes, attributes))
        outs = [placed(np.empty(size, "float32")) for size in sizes]
        called(KERNELS[name], map(placed, operands), outs, **attributes)
        results.append([out.tobytes() for out in outs])
    assert all(result == results[0] for result in results)
