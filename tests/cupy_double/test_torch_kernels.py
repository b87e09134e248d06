"""PyTorch's kernels on arrays of the double, as on a GPU: whole and split, and of 16 bits."""

import numpy as np
import pytest

pytest.importorskip("torch")
from operator_verification import CheckOptions, check_operator

from executor.kernels import KERNELS, KernelCall, run
from executor.torch.kernels import KERNEL_SET, TORCH_KERNELS
from tests.cupy_double.torch_operators import Operators, Strict


@pytest.mark.parametrize("name", sorted(TORCH_KERNELS))
def test_a_kernel_computes_what_the_description_says(cupy, name):
    options = CheckOptions(cases=3, kinds=("kernel", "split"), kernels=KERNEL_SET.kernels, xp=cupy)
    with Strict():
        verification = check_operator(name, options)
    assert [str(failure) for failure in verification.failures] == []
    assert set(verification.kinds) == set(options.kinds)


def test_gradients_of_pooling_may_be_written_into_a_part_of_a_tensor(cupy):
    rng = np.random.default_rng(0)
    grad, offsets = rng.random((2, 3, 4, 4), np.float32), rng.integers(0, 4, (2, 3, 4, 4), np.int32)
    extents, written = {"y": 8, "x": 8, "dy": 2, "dx": 2}, []
    attributes = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "extents": extents}
    ranges = {name: (0, extent) for name, extent in extents.items()} | {"n": (0, 2), "c": (0, 3)}
    for kernels in (TORCH_KERNELS, KERNELS):
        out = cupy.asarray(np.full((2, 5, 8, 8), -1, np.float32))
        inputs, origins = tuple(map(cupy.asarray, (grad, offsets))), ((0,) * 4,) * 2
        with Strict():
            kernels["max_pool2d_with_indices_backward"](
                KernelCall(cupy, inputs, (out[:, 1:4],), attributes, ranges, origins)
            )
        written.append(out.get())
    np.testing.assert_array_equal(*written)


POOLED = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "extents": {"y": 4, "x": 4, "dy": 3, "dx": 3}}


def pooled(cupy, kernels, image):
    """Return the maxima of an image, where they are, and the gradient of their sum."""
    ranges = {name: (0, extent) for name, extent in POOLED["extents"].items()}
    outs = [cupy.asarray(np.zeros((1, 1, 4, 4), dtype)) for dtype in (np.float32, np.int32)]
    gradient, ones = cupy.asarray(np.full(image.shape, -1, np.float32)), cupy.asarray(np.ones((1, 1, 4, 4), np.float32))
    kernels["max_pool2d_with_indices"](
        KernelCall(cupy, (cupy.asarray(image),), tuple(outs), POOLED, ranges, ((0,) * 4,))
    )
    kernels["max_pool2d_with_indices_backward"](
        KernelCall(
            cupy,
            (ones, outs[1]),
            (gradient,),
            POOLED | {"extents": {**POOLED["extents"], "y": 8, "x": 8}},
            {**ranges, "y": (0, 8), "x": (0, 8)},
            ((0,) * 4,) * 2,
        )
    )
    return [array.get() for array in (*outs, gradient)]


@pytest.mark.parametrize("value", [-np.inf, 0.0, 1.0])
def test_maxima_beside_padding_are_those_on_arrays(cupy, value):
    """Of windows that hold the least of all numbers only, and of equal ones."""
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    image[..., :5, :5] = value
    with Operators() as operators:
        by_torch = pooled(cupy, TORCH_KERNELS, image)
    assert operators.launches["max_pool2d_with_indices"] == operators.launches["max_pool2d_with_indices_backward"] == 1
    for result, expected in zip(by_torch, pooled(cupy, KERNELS, image), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_what_is_no_number_has_no_place_outside_the_image(cupy):
    """Where kernels on arrays found no maximum, PyTorch's gives the gradient to nobody."""
    offsets = cupy.asarray(np.full((1, 1, 4, 4), 9, np.int32))
    grad, out = cupy.asarray(np.ones((1, 1, 4, 4), np.float32)), cupy.asarray(np.full((1, 1, 8, 8), 7, np.float32))
    extents = {"y": 8, "x": 8, "dy": 3, "dx": 3}
    ranges = {name: (0, extent) for name, extent in extents.items()}
    call = KernelCall(cupy, (grad, offsets), (out,), POOLED | {"extents": extents}, ranges, ((0,) * 4,) * 2)
    TORCH_KERNELS["max_pool2d_with_indices_backward"](call)
    assert not out.get().any()


def test_windows_that_read_padding_alone_are_zero(cupy):
    """A worker that has no column of an image, which PyTorch's convolution refuses."""
    image, weight = np.ones((2, 3, 4, 0), np.float32), np.ones((5, 3, 3, 1), np.float32)
    out = cupy.asarray(np.full((2, 5, 4, 1), 7, np.float32))
    ranges = {"n": (0, 2), "y": (0, 4), "x": (0, 1), "dy": (0, 3), "dx": (0, 1)}
    window = {"stride": (1, 1), "padding": (1, 1)}
    with Strict():
        TORCH_KERNELS["convolution"](
            KernelCall(cupy, tuple(map(cupy.asarray, (image, weight))), (out,), window, ranges, ((0,) * 4,) * 2)
        )
    assert not out.get().any()


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("equation", "shapes", "products"),
    [
        ("bsv,bsd->dv", ((2, 3, 5), (2, 3, 4)), ("mm", "addmm_")),
        ("bij,bjk->bki", ((2, 3, 5), (2, 5, 4)), ("bmm", "baddbmm_")),
    ],
)
def test_a_transposed_result_is_one_product(cupy, equation, shapes, products, adds):
    """Nothing is computed beside it and then copied."""
    rng = np.random.default_rng(0)
    operands = [rng.random(shape, np.float32) for shape in shapes]
    expected = np.einsum(equation, *operands)
    out = cupy.asarray(np.ones(expected.shape, np.float32))
    call = KernelCall(cupy, tuple(map(cupy.asarray, operands)), (out,), {"equation": equation}, {}, ())
    with Operators() as operators:
        KERNEL_SET.bind("einsum", call, adds)()
    assert operators.launches.keys() == {products[adds]}
    np.testing.assert_allclose(out.get(), expected + adds, rtol=1e-6)


SETTINGS = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3, "decay": 0.2}
OPERANDS = {"sgd": 2, "sgd_momentum": 3, "adamw": 4}
"""Weight, gradient and states, besides the number of steps of the last."""


def update(cupy, op, dtype, momentum, part):
    """Return an update in place of a part of a weight, by a gradient that is a whole tensor."""
    rng = np.random.default_rng(0)
    operands = [cupy.asarray(rng.random((2, 3, 4)).astype(dtype))[part] for _ in range(OPERANDS[op])]
    operands[1] = cupy.asarray(operands[1].get())
    outputs = operands[0], *operands[2:]
    steps = [cupy.asarray(np.array(3, np.float32))] if op == "adamw" else []
    settings = SETTINGS | ({"momentum": momentum} if op == "sgd_momentum" else {})
    return KernelCall(cupy, (*operands, *steps), outputs, settings, {}, ())


@pytest.mark.parametrize("op", OPERANDS)
@pytest.mark.parametrize(
    ("dtypes", "momentum", "part"),
    [
        (("float32", "float32"), 0.5, (...,)),
        (("float32", "float64"), 0.5, (...,)),
        (("float32", "float32"), 0.0, (...,)),
        (("float32", "float32"), 0.5, (slice(1), slice(1))),
    ],
    ids=["alike", "two dtypes", "no momentum", "other strides"],
)
def test_updates_at_once_are_those_on_arrays(cupy, op, dtypes, momentum, part):
    together, alone = ([update(cupy, op, dtype, momentum, part) for dtype in dtypes] for _ in range(2))
    with Strict():
        several = KERNEL_SET.several[op](together)
        for action in [several] if several else [KERNEL_SET.bind(op, call) for call in together]:
            action()
    for dtype, *calls in zip(dtypes, together, alone, strict=True):
        run(KERNELS[op], calls[1])
        for arrays in zip(*(call.outputs for call in calls), strict=True):
            result, expected = (array.get().astype(np.float64) for array in arrays)
            np.testing.assert_allclose(result, expected, atol=1e-6 if dtype == "float32" else 1e-12)
