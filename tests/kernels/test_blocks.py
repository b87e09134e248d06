"""Work in blocks: every element once, at equal places, and the same bits as without."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from operator_verification import CheckOptions, check_operator
from scipy.special import ndtr

from executor.kernels import KernelCall, attention, call, sums
from tests.kernels.calls import apply

SMALL = 8


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(call, "BLOCK_ELEMENTS", SMALL)


@st.composite
def array_sets(draw):
    """An array near the block size, contiguous or not, and others that broadcast to it; numbers among them."""
    shape = tuple(draw(st.lists(st.integers(0, 2 * SMALL + 1), min_size=1, max_size=4)))
    count = math.prod(shape)
    whole = np.arange(2 * count).reshape(*shape[:-1], 2 * shape[-1])
    first = whole[..., : shape[-1]] if draw(st.booleans()) else np.arange(count).reshape(shape)
    others = []
    for _ in range(draw(st.integers(0, 3))):
        kept = [extent if draw(st.booleans()) else 1 for extent in shape]
        others.append(np.arange(math.prod(kept)).reshape(kept) if draw(st.booleans()) else np.asarray(7))
    return first, *others


@given(array_sets())
@settings(max_examples=300, deadline=None)
def test_blocks_have_every_element_once_beside_what_it_meets(arrays):
    before, call.BLOCK_ELEMENTS = call.BLOCK_ELEMENTS, SMALL
    try:
        parts = list(call.blocks(np, *arrays))
    finally:
        call.BLOCK_ELEMENTS = before
    for number, whole in enumerate(np.broadcast_arrays(*arrays)):
        pieces = [np.broadcast_to(part[number], part[0].shape).reshape(-1) for part in parts]
        assert np.array_equal(np.concatenate(pieces), whole.reshape(-1))
    assert all(part[0].size <= 2 * SMALL for part in parts) or arrays[0].size == 0
    assert all(np.shares_memory(part[0], arrays[0]) for part in parts if part[0].size)


ELEMENTWISE = {
    "sgd": (2, {"lr": 0.1}), "sgd_momentum": (3, {"lr": 0.1, "momentum": 0.9}),
    "rmsprop": (3, {"lr": 0.1, "alpha": 0.9, "eps": 1e-8}), "adagrad": (3, {"lr": 0.1, "eps": 1e-8}),
    "sigmoid": (1, {}), "sigmoid_backward": (2, {}), "tanh_backward": (2, {}), "threshold_backward": (2, {}),
    "add_n": (4, {}), "gelu": (1, {}), "gelu_backward": (2, {}), "silu_backward": (2, {}), "erf": (1, {}),
    "maximum_backward": (3, {}), "lerp": (2, {"weight": 0.3}),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("shape", [(SMALL + 1,), (2, 3, 2 * SMALL + 5)])
def test_the_same_bits_in_blocks_as_without(small_blocks, monkeypatch, name, shape):
    count, attributes = ELEMENTWISE[name]
    operands = [np.abs(np.random.default_rng(n).standard_normal(shape)).astype("float32") for n in range(count)]
    in_blocks = apply(name, *operands, **attributes)
    monkeypatch.setattr(call, "BLOCK_ELEMENTS", 1 << 30)
    for inside, whole in zip(in_blocks, apply(name, *operands, **attributes), strict=True):
        assert inside.tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    "name",
    [
        *("batch_norm_var", "batch_norm", "batch_norm_backward_reduce", "batch_norm_backward", "hypot", "softmax"),
        *("attention", "attention_backward_query", "attention_backward_keys", "biased_attention"),
    ],
)
def test_operators_in_blocks_are_as_described(small_blocks, monkeypatch, name):
    monkeypatch.setattr(attention, "BLOCK_SCORES", 1)
    result = check_operator(name, CheckOptions(cases=6, kinds=("kernel",)))
    assert [str(failure) for failure in result.failures] == []


def test_gelu_in_single_precision_is_nearly_as_near_as_pytorchs():
    # PyTorch's largest errors are, by these measures, 3.2e-7 and 2.6e-7
    x = np.concatenate([np.linspace(-30, 30, 400_001), [-1e18, 0.0, -0.0, 1e18]]).astype(np.float32)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        (value,), (slope,) = apply("gelu", x), apply("gelu_backward", np.ones_like(x), x)
    assert np.max(np.abs(value - wide * ndtr(wide)) / np.maximum(1, np.abs(wide))) < 5e-7
    derivative = ndtr(wide) + wide * np.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    assert np.max(np.abs(slope - derivative)) < 5e-7
    assert apply("gelu", np.float32([np.inf, np.nan]))[0].tolist()[0] == np.inf
    assert np.isnan(apply("gelu", np.float32([np.nan]))[0]).all()


def test_relu_takes_whole_numbers_and_gelu_single_ones():
    assert apply("relu", np.array([-3, 0, 4], np.int32))[0].tolist() == [0, 0, 4]
    assert apply("gelu", np.array(2.0, np.float32))[0] == pytest.approx(2 * ndtr(2), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "attributes", "shapes"),
    [
        ("mm", {"transpose_a": True}, ((3, 2 * SMALL + 1), (3, 5))),
        ("mm", {"transpose_b": True}, ((4, 3), (0, 3))),
        ("einsum", {"equation": "bgh,bi->ghi"}, ((3, 4, 5), (3, 6))),
        ("einsum", {"equation": "abk,ack->abc"}, ((2, 3, 4), (2, 5, 4))),
        ("einsum", {"equation": "ik,kj->ji"}, ((3, 4), (4, 5))),
        ("einsum", {"equation": "ijk->ki"}, ((3, 4, 5),)),
    ],
)
def test_products_that_add_to_what_is_there(monkeypatch, name, attributes, shapes):
    monkeypatch.setattr(sums, "ADDED_ELEMENTS", SMALL)
    operands = tuple(np.random.default_rng(n).standard_normal(shape) for n, shape in enumerate(shapes))
    (product,) = apply(name, *operands, **attributes)
    out = np.ones_like(product)
    sums.ADDING[name](KernelCall(np, operands, (out,), attributes, {}, ()))
    np.testing.assert_allclose(out, 1 + product, rtol=1e-14)


@pytest.mark.parametrize("rows", [1, 3, sums.FEW_ROWS, sums.FEW_ROWS + 1])
@pytest.mark.parametrize("columns", [sums.MANY_COLUMNS * 3 - 1, sums.MANY_COLUMNS * sums.FEW_ROWS])
def test_products_of_few_rows_with_a_transposed_matrix(rows, columns):
    a = np.random.default_rng(0).standard_normal((rows, 5))
    b = np.random.default_rng(1).standard_normal((columns, 5))
    (out,) = apply("mm", a, b, transpose_b=True)
    np.testing.assert_allclose(out, np.einsum("ik,jk->ij", a, b), rtol=1e-12, atol=1e-12)
