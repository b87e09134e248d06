"""Reference evaluation, inferred shapes and dtypes of catalog operators equal PyTorch's results."""

from inspect import signature

import numpy as np
import pytest
from operator_verification.cases import CASES

import tdl
from executor.cases import Draw
from planner.graph.opaque_ops import CALL, GRADIENT

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from tests.tdl.torch_oracles import ORACLES, spread  # noqa: E402

ATTENTION = {f"attention_backward_{of}" for of in ("query", "keys")}
TESTED_TOGETHER = {
    *("normalize_backward_statistics", "normalize_backward", "batch_norm_backward"),
    *(ATTENTION | {f"biased_{name}" for name in ATTENTION} | {"biased_attention_backward_bias"}),
}
"""Parts of one gradient, compared to PyTorch's as a whole."""

RANDOM = {"dropout", "bernoulli", "rand", "randn"}
"""Operators that PyTorch has, but with a generator of its own; tested for their distribution."""


def test_every_operator_has_an_oracle():
    assert set(ORACLES) | RANDOM | TESTED_TOGETHER == set(tdl.catalog) - {CALL, GRADIENT}  # PyTorch's own calls


@pytest.mark.parametrize("name", ORACLES)
def test_evaluation_and_shapes_equal_torch(name):
    draw = Draw(np.random.default_rng([5, *name.encode()]))
    for _ in range(4):
        case = CASES[name](draw)
        described = tdl.catalog[name].describe([operand.ndim for operand in case.operands], case.attributes)
        extents = described.extents([operand.shape for operand in case.operands], case.attributes)
        attributes = dict(case.attributes)
        if "extents" in attributes and "extents" not in signature(ORACLES[name]).parameters:
            del attributes["extents"]
        expected = ORACLES[name](*map(torch.tensor, case.operands), **attributes)
        expected = expected if isinstance(expected, tuple) else (expected,)
        assert described.output_shapes(extents) == tuple(tuple(tensor.shape) for tensor in expected)
        for result, right in zip(described.evaluate(case.operands, case.attributes, extents), expected, strict=True):
            np.testing.assert_allclose(result, right.numpy(), rtol=1e-7, atol=1e-9)


def evaluate_all(name, *operands, **attributes):
    operands = tuple(np.asarray(operand) for operand in operands)
    return tdl.catalog[name].describe([o.ndim for o in operands], attributes).evaluate(operands, attributes)


def evaluate(name, *operands, **attributes):
    return evaluate_all(name, *operands, **attributes)[0]


@pytest.mark.parametrize("name", ["relu", "mm", "cross_entropy", "max_pool2d_with_indices"])
def test_outputs_have_the_dtype_of_the_first_float_operand_except_indices(name):
    case = CASES[name](Draw(np.random.default_rng(5)))
    narrow = [array.astype(np.float32) if array.dtype == np.float64 else array for array in case.operands]
    described = tdl.catalog[name].describe([array.ndim for array in narrow], case.attributes)
    dtypes = [result.dtype.name for result in described.evaluate(narrow, case.attributes)]
    assert dtypes == (["float32", "int32"] if name == "max_pool2d_with_indices" else ["float32"])
    assert described.output_dtypes([array.dtype.name for array in narrow]) == tuple(dtypes)


def test_batch_norm_and_its_gradient_equal_torch():
    rng = np.random.default_rng(4)
    shapes = ((2, 3, 4, 5), (3,), (3,))
    image, weight, bias = (torch.tensor(rng.standard_normal(shape), requires_grad=True) for shape in shapes)
    y = torch.nn.functional.batch_norm(image, None, None, weight, bias, training=True, eps=1e-3)
    grad = torch.tensor(rng.standard_normal(y.shape))
    expected = torch.autograd.grad(y, (image, weight, bias), grad)
    x, w, b = (tensor.detach() for tensor in (image, weight, bias))
    mean = evaluate("mean", x, dims=(0, 2, 3), count=40)
    var = evaluate("batch_norm_var", x, mean, count=40)
    np.testing.assert_allclose(evaluate("batch_norm", x, mean, var, w, b, eps=1e-3), y.detach(), atol=1e-12)
    sums = evaluate_all("batch_norm_backward_reduce", grad, x, mean, var, eps=1e-3)
    back = evaluate("batch_norm_backward", grad, x, mean, var, w, *sums, eps=1e-3, count=40)
    for result, right in zip((back, *sums), expected, strict=True):
        np.testing.assert_allclose(result, right, atol=1e-12)


def test_dropout_keeps_and_scales_the_right_share():
    x = np.ones((200, 300))
    dropped = evaluate("dropout", x, 3.0, p=0.25, seed=1)
    assert set(np.unique(dropped)) == {0.0, 1 / 0.75}
    assert abs((dropped == 0).mean() - 0.25) < 0.01
    other = evaluate("dropout", x, 4.0, p=0.25, seed=1)
    assert abs(((dropped == 0) & (other == 0)).mean() - 0.0625) < 0.01
    assert not np.array_equal(dropped, evaluate("dropout", x, 3.0, p=0.25, seed=2))
    assert np.array_equal(dropped, evaluate("dropout", x, 3.0, p=0.25, seed=1))


def test_random_values_have_their_distributions():
    how = {"rank": 2, "extents": {"i0": 200, "i1": 300}, "seed": 7}
    uniform, normal = evaluate("rand", 1.0, **how), evaluate("randn", 1.0, **how)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(uniform.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(uniform[:, 1:].ravel(), uniform[:, :-1].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(uniform[1:].ravel(), uniform[:-1].ravel())[0, 1]) < 0.02
    assert abs(normal.mean()) < 0.02
    assert abs(normal.var() - 1) < 0.03
    assert abs((normal**4).mean() - 3) < 0.2
    assert abs(evaluate("bernoulli", 1.0, p=0.3, **how).mean() - 0.3) < 0.01


@pytest.mark.parametrize(("statistics", "weights"), [((0, 1), (2,)), ((0,), (1, 2)), ((1,), (1,))])
def test_the_gradient_of_normalization_through_its_statistics(statistics, weights):
    rng = np.random.default_rng(3)
    data, grad = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((2, 3, 4, 5))
    shape = [data.shape[dim] for dim in weights]
    weight, bias = rng.standard_normal(shape), rng.standard_normal(shape)
    dims = tuple(dim for dim in range(4) if dim not in statistics)
    count = int(np.prod([data.shape[dim] for dim in dims]))
    how = {"statistics": statistics, "weights": weights, "eps": 1e-5}
    mean = evaluate("mean", data, dims=dims, count=count)
    var = evaluate("var", data, mean, dims=dims, count=count)
    x = torch.tensor(data, requires_grad=True)
    m, v = x.mean(dims, keepdim=True), x.var(dims, keepdim=True, unbiased=False)
    y = (x - m) / torch.sqrt(v + 1e-5) * spread(torch.tensor(weight), x, weights) + spread(
        torch.tensor(bias), x, weights
    )
    np.testing.assert_allclose(evaluate("normalize", data, mean, var, weight, bias, **how), y.detach(), atol=1e-12)
    sums = evaluate_all("normalize_backward_statistics", grad, data, mean, var, weight, **how)
    gradient = evaluate("normalize_backward", grad, data, mean, var, weight, *sums, **how, count=count)
    (expected,) = torch.autograd.grad(y, x, torch.tensor(grad))
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


def tensors(draw, groups, share, dims):
    """Queries, keys, values and a bias of these dimensions, and the gradient that arrives."""
    shape = 2, groups * share, 5, 6
    operands = [draw.normal(size=size) for size in ((*shape[:3], 3), (2, groups, 6, 3), (2, groups, 6, 4))]
    bias = draw.normal(size=[shape[dim] for dim in dims])
    return [torch.tensor(x, requires_grad=True) for x in (*operands, bias)], torch.tensor(
        draw.normal(size=(2, groups * share, 5, 4))
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("groups", "share", "dims"), [(1, 1, ()), (2, 1, (2, 3)), (2, 3, (1, 3)), (1, 4, (0, 1, 2, 3))]
)
def test_attention_and_its_gradients_equal_torch(groups, share, dims, causal):
    (query, key, value, bias), grad = tensors(np.random.default_rng(6), groups, share, dims)
    hidden = torch.full((5, 6), -torch.inf).triu(1) if causal else torch.zeros(5, 6)
    mask = spread(bias, torch.empty(1, 1, 1, 1), dims) + hidden
    expected = functional.scaled_dot_product_attention(query, key, value, mask, scale=0.3, enable_gqa=True)
    gradients = torch.autograd.grad(expected, (query, key, value, bias), grad)
    prefix, how = "biased_" if dims else "", {"scale": 0.3, "causal": causal, **({"dims": dims} if dims else {})}
    given = [x.detach() for x in (query, key, value, *([bias] if dims else []))]
    result, total = evaluate_all(f"{prefix}attention", *given, **how)
    np.testing.assert_allclose(result, expected.detach(), atol=1e-12)
    operands = (grad, *given, total, (grad.numpy() * result).sum(-1))
    names = [name for name in ("query", "keys", "bias") if name != "bias" or dims]
    results = [x for name in names for x in evaluate_all(f"{prefix}attention_backward_{name}", *operands, **how)]
    for result, right in zip(results, gradients, strict=False):
        np.testing.assert_allclose(result, right, atol=1e-12)


def test_the_gradient_of_rms_norm_equals_torch():
    rng = np.random.default_rng(4)
    x, grad, weight = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 3, 5)), rng.standard_normal(5)
    tensors = torch.tensor(x, requires_grad=True), torch.tensor(weight, requires_grad=True)
    expected = functional.rms_norm(tensors[0], (5,), tensors[1], eps=1e-5)
    of_x, of_weight = torch.autograd.grad(expected, tensors, torch.tensor(grad))
    square = evaluate("mean_square", x, count=5)
    np.testing.assert_allclose(evaluate("rms_norm", x, square, weight, eps=1e-5), expected.detach(), atol=1e-12)
    inner = evaluate("rms_norm_backward_sum", grad, x, weight)
    gradient = evaluate("rms_norm_backward", grad, x, square, weight, inner, eps=1e-5, count=5)
    np.testing.assert_allclose(gradient, of_x, atol=1e-12)
    np.testing.assert_allclose(evaluate("rms_norm_backward_weight", grad, x, square, eps=1e-5), of_weight, atol=1e-12)
