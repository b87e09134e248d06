"""Every catalog operator's reference evaluation and shapes equal direct NumPy, and PyTorch where it has one."""

from __future__ import annotations

import numpy as np
import pytest

import tdl
from tests.tdl.cases import CASES, EPS, Case, integers, real


def described(case: Case) -> tdl.Description:
    return tdl.catalog[case.op].describe([a.ndim for a in case.arrays], case.attributes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_evaluation_and_shapes_equal_numpy(case):
    found = described(case)
    expected = case.oracle(*case.arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    extents = found.extents([a.shape for a in case.arrays], case.attributes)
    assert found.output_shapes(extents) == tuple(np.shape(e) for e in expected)
    results = found.evaluate(case.arrays, case.attributes, extents)
    assert len(results) == len(expected)
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_have_the_dtype_of_the_first_float_operand_except_indices(case):
    narrow = [a.astype(np.float32) if a.dtype == np.float64 else a for a in case.arrays]
    results = described(case).evaluate(narrow, case.attributes)
    expected = ["float32"] * len(results)
    if case.op == "max_pool2d_with_indices":
        expected[1] = "int32"
    assert [r.dtype.name for r in results] == expected
    assert described(case).output_dtypes([a.dtype.name for a in narrow]) == tuple(expected)


def test_catalog_names_operands_and_attributes():
    adam = tdl.catalog["adam"]
    assert adam.operands == ("w", "grad", "m", "v", "t")
    assert adam.required == ("lr", "beta1", "beta2", "eps")
    assert dict(tdl.catalog["mm"].attributes) == {"transpose_a": False, "transpose_b": False}
    assert tdl.catalog["add_n"].variadic
    assert tdl.catalog["stack"].describe((1, 1), {"dim": 0}).operands == ("tensors0", "tensors1")
    assert {op.category for op in tdl.catalog.values()} == {
        "matmul",
        "convolution",
        "reduction",
        "elementwise",
        "other",
    }


def evaluate(op: str, *arrays: object, **attributes: object) -> tuple[np.ndarray, ...]:
    arrays = tuple(np.asarray(a) for a in arrays)
    return tdl.catalog[op].describe([a.ndim for a in arrays], attributes).evaluate(arrays, attributes)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3)])
def test_pooling_and_its_gradient_equal_torch(kernel):
    torch = pytest.importorskip("torch")
    how = {"stride": (2, 2), "padding": (1, 1), "kernel": kernel}
    extents = {"y": 7, "x": 6}
    for name, pool in (
        ("max_pool2d_with_indices", torch.nn.functional.max_pool2d),
        ("avg_pool2d", torch.nn.functional.avg_pool2d),
    ):
        x = torch.tensor(real(2, 3, 7, 6), requires_grad=True)
        y = pool(x, kernel, stride=2, padding=1)
        grad = torch.tensor(real(*y.shape))
        y.backward(grad)
        found, *rest = evaluate(name, x.detach(), **how)
        np.testing.assert_allclose(found, y.detach(), atol=1e-12)
        (back,) = evaluate(f"{name}_backward", grad, *rest, **how, extents=extents)
        np.testing.assert_allclose(back, x.grad, atol=1e-12)


def test_batch_norm_and_its_gradient_equal_torch():
    torch = pytest.importorskip("torch")
    x, w, b = (torch.tensor(a, requires_grad=True) for a in (real(2, 3, 4, 5), real(3), real(3)))
    y = torch.nn.functional.batch_norm(x, None, None, w, b, training=True, eps=EPS)
    grad = torch.tensor(real(*y.shape))
    y.backward(grad)
    image, weight, bias = (t.detach().numpy() for t in (x, w, b))
    (mean,) = evaluate("mean", image, dims=(0, 2, 3), count=40)
    (var,) = evaluate("batch_norm_var", image, mean, count=40)
    (found,) = evaluate("batch_norm", image, mean, var, weight, bias, eps=EPS)
    grads = evaluate("batch_norm_backward_reduce", grad, image, mean, var, eps=EPS)
    (back,) = evaluate("batch_norm_backward", grad, image, mean, var, weight, *grads, eps=EPS, count=40)
    np.testing.assert_allclose(found, y.detach(), atol=1e-12)
    np.testing.assert_allclose(grads[0], w.grad, atol=1e-12)
    np.testing.assert_allclose(grads[1], b.grad, atol=1e-12)
    np.testing.assert_allclose(back, x.grad, atol=1e-12)


def test_cross_entropy_and_its_gradient_equal_torch():
    torch = pytest.importorskip("torch")
    x, labels = torch.tensor(real(6, 5), requires_grad=True), integers(5, 6)
    loss = torch.nn.functional.cross_entropy(x, torch.tensor(labels, dtype=torch.int64))
    loss.backward()
    logits = x.detach().numpy()
    (maximum,) = evaluate("amax", logits, dims=(1,))
    (total,) = evaluate("sum_exp", logits, maximum)
    (found,) = evaluate("cross_entropy", logits, maximum, total, labels, count=6)
    (back,) = evaluate("cross_entropy_backward", logits, maximum, total, labels, factor=1 / 6)
    np.testing.assert_allclose(found, loss.detach(), atol=1e-12)
    np.testing.assert_allclose(back, x.grad, atol=1e-12)
