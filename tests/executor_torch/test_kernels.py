"""PyTorch's kernels stand every check that those on arrays stand: on the whole, in parts, as the planner splits."""

import numpy as np
import pytest

pytest.importorskip("torch")
from operator_verification import CheckOptions, check_operator

from executor.kernels import KERNELS, KernelCall
from executor.torch import attention, elementwise
from executor.torch.kernels import KERNEL_SET, TORCH_KERNELS

OPTIONS = CheckOptions(cases=4, kinds=("kernel", "split"), kernels=KERNEL_SET.kernels)


@pytest.mark.parametrize("name", TORCH_KERNELS)
def test_a_kernel_computes_what_the_description_says(name):
    verification = check_operator(name, OPTIONS)
    assert verification.failures == ()
    assert set(verification.kinds) == set(OPTIONS.kinds)


def test_taps_of_a_share_may_read_padding_alone():
    options = CheckOptions(cases=60, kinds=("split",), kernels=KERNEL_SET.kernels)
    assert check_operator("convolution_backward_weight", options).failures == ()


def product(outputs, dtype):
    values = np.arange(12, dtype=np.float32).astype(dtype)
    inputs = values[:6].reshape(2, 3), values[6:].reshape(3, 2)
    return KernelCall(np, inputs, outputs, {"equation": "ik,kj->ij"}, {}, ((0, 0), (0, 0)))


@pytest.mark.parametrize("op", KERNEL_SET.adding)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_kernel_that_adds(op, dtype):
    out, expected = np.full((2, 2), 7, dtype), np.empty((2, 2), dtype)
    KERNEL_SET.bind(op, product((out,), dtype), adds=True)()
    KERNELS[op](product((expected,), dtype))
    assert out.tolist() == (7 + expected.astype(np.float64)).tolist()  # whole numbers, small enough to be exact


def test_a_product_may_be_where_its_factor_was():
    x = np.arange(6.0).reshape(2, 3)
    TORCH_KERNELS["einsum"](KernelCall(np, (x, np.array(2.0)), (x,), {"equation": "ab,->ab"}, {}, ((0, 0), ())))
    assert x.tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("first_query", "first_key"), [(0, 0), (3, 1)])
def test_gradients_of_attention_at_once_are_those_one_by_one(causal, first_query, first_key, monkeypatch):
    """Of a share of rows and keys, in blocks of two rows, of one head; 4 heads of queries share 2 of keys."""
    monkeypatch.setattr(attention, "BLOCK_SCORES", 1)
    monkeypatch.setattr(attention, "CAUSAL_ROWS", 2)
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 5, 3), "k": (2, 2, 7, 3), "v": (2, 2, 7, 6), "grad": (2, 4, 5, 6)}
    q, k, v, grad = (rng.standard_normal(shape) for shape in shapes.values())
    inputs = grad, q, k, v, 2 + rng.standard_normal((2, 4, 5)), rng.standard_normal((2, 4, 5))
    ranges = {"b": (0, 2), "g": (0, 2), "r": (0, 2), "e": (0, 3)}
    ranges |= {"q": (first_query, first_query + 5), "k": (first_key, first_key + 7)}

    def call(*outputs):
        return KernelCall(np, inputs, outputs, {"scale": 0.3, "causal": causal}, ranges, ((0,) * 4,) * 6)

    gradients, expected = ([np.empty_like(x) for x in (q, k, v)] for _ in range(2))
    ops = "attention_backward_query", "attention_backward_keys"
    KERNEL_SET.at_once[ops](call(gradients[0]), call(*gradients[1:]))
    for op, outputs in zip(ops, (expected[:1], expected[1:]), strict=True):
        KERNELS[op](call(*outputs))
    for gradient, right in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, right, atol=1e-12)


@pytest.mark.parametrize("op", ["adam", "adamw"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("places", [(0, 2, 3), (1, 3, 0), None], ids=["its own memory", "others' memory", "new memory"])
def test_adam_of_a_large_weight(op, dtype, places):
    settings = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3} | ({"decay": 0.2} if op == "adamw" else {})

    def updated(kernels):
        rng = np.random.default_rng(0)
        operands = [rng.random(elementwise.LEAST).astype(dtype) for _ in range(4)]
        outputs = [operands[place] for place in places] if places else [np.empty_like(x) for x in operands[:3]]
        kernels[op](KernelCall(np, (*operands, np.array(3, np.int32)), outputs, settings, {}, ()))
        return outputs

    for outputs, expected in zip(updated(TORCH_KERNELS), updated(KERNELS), strict=True):
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6 if dtype == "float32" else 1e-12)
