"""Reference evaluation, inferred shapes and dtypes of catalog operators equal PyTorch's results."""

from inspect import signature

import numpy as np
import pytest
from operator_verification.cases import CASES

import tdl
from executor.cases import Draw
from planner.graph.opaque_ops import CALL, GRADIENT

torch = pytest.importorskip("torch")

from tests.tdl.torch_oracles import ORACLES  # noqa: E402

RANDOM = {"dropout", "bernoulli", "rand", "randn"}
"""Operators that PyTorch has, but with a generator of its own; tested for their distribution."""


GRADIENTS = {name for name in tdl.catalog if "_backward" in name} - ORACLES.keys()
"""Those of the others, which are compared with central differences (tests/kernels/test_catalog.py)."""


def test_every_operator_has_an_oracle():
    assert set(ORACLES) | RANDOM | GRADIENTS == set(tdl.catalog) - {CALL, GRADIENT}  # PyTorch's own calls


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


def evaluate(name, *operands, **attributes):
    operands = tuple(np.asarray(operand) for operand in operands)
    return tdl.catalog[name].describe([o.ndim for o in operands], attributes).evaluate(operands, attributes)[0]


@pytest.mark.parametrize("name", ["cross_entropy", "max_pool2d_with_indices"])
def test_outputs_have_the_dtype_of_the_first_float_operand_except_indices(name):
    case = CASES[name](Draw(np.random.default_rng(5)))
    narrow = [array.astype(np.float32) if array.dtype == np.float64 else array for array in case.operands]
    described = tdl.catalog[name].describe([array.ndim for array in narrow], case.attributes)
    dtypes = [result.dtype.name for result in described.evaluate(narrow, case.attributes)]
    assert dtypes == (["float32", "int32"] if name == "max_pool2d_with_indices" else ["float32"])
    assert described.output_dtypes([array.dtype.name for array in narrow]) == tuple(dtypes)


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
