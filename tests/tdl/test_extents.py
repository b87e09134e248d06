"""Extents and shapes: the largest range with no access outside, widened by pads, else what is given."""

from __future__ import annotations

import numpy as np
import pytest

import tdl
from tdl import OpaqueFunction, Sum, TDLError, at, pad, tensor
from tests.tdl.paper_operators import CATALOG
from tests.tdl.test_strategies import describe

HALF = {"stride": (2, 2), "padding": (1, 1)}

# operator, shapes, attributes, extents (in order), output shapes
TABLE = (
    ("mm", [(3, 2), (4, 3)], {"transpose_a": True, "transpose_b": True}, {"i": 2, "j": 4, "k": 3}, [(2, 4)]),
    ("shift_two", [(9,)], {}, {"i": 7}, [(7,)]),
    ("conv1d", [(2, 3, 9), (3, 4, 5)], {}, {"b": 2, "co": 4, "x": 5, "ci": 3, "dx": 5}, [(2, 4, 5)]),
    (
        "convolution_backward_input",
        [(2, 4, 4, 4), (4, 3, 3, 3)],
        {**HALF, "extents": {"y": 8, "x": 7}},
        {"n": 2, "ci": 3, "y": 8, "x": 7, "co": 4, "dy": 3, "dx": 3},
        [(2, 3, 8, 7)],
    ),
    ("expand", [(3,)], {"dims": (1,), "extents": {"e0": 5}}, {"i0": 3, "e0": 5}, [(3, 5)]),
    (
        "reshape",
        [(12,)],
        {"source": (("v0", "v1"),), "target": (("v0",), ("v1",)), "extents": {"v1": 4}},
        {"v0": 3, "v1": 4},
        [(3, 4)],
    ),
    ("batch_cholesky", [(2, 4, 4)], {}, {"b": 2, "i": 4, "j": 4}, [(2, 4, 4)]),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_extents_and_output_shapes(row):
    op, shapes, attributes, extents, outputs = row
    description = CATALOG[op].describe([len(shape) for shape in shapes], attributes)
    assert description.extents(shapes, attributes) == extents
    assert list(description.extents(shapes, attributes)) == list(description.variables)
    assert description.output_shapes(extents) == tuple(outputs)


@pytest.mark.parametrize(
    ("body", "extent"),
    [
        (lambda x: lambda i: x[2 * i], 5),
        (lambda x: lambda i: x[9 - i], 10),
        (lambda x: lambda i: x[i] + x[i + 1], 9),
        (lambda x: lambda i: x[i + 1] + x[2 * i], 5),
        (lambda x: lambda i: x[pad(i - 1, 1, 1)], 12),
        (lambda x: lambda i: Sum(lambda k=3: x[pad(i + k - 1, 1, 1)]), 10),
        (lambda x: lambda i: Sum(lambda k=2: x[2 * i - k + 1]), 5),
        (lambda x: lambda i: x[i / 2], 19),
    ],
)
def test_largest_range_with_no_access_outside(body, extent):
    assert describe(body, 1).extents([(10,)])["i"] == extent


def test_reads_outside_are_skipped_inside_a_reducer_and_zero_elsewhere():
    x = np.arange(1.0, 5.0)
    (shifted,) = describe(lambda x: lambda i: x[pad(i - 1, 1, 0)] + 10, 1).evaluate([x])
    assert shifted.tolist() == [10, 11, 12, 13, 14]
    (least,) = describe(lambda x: lambda i: tdl.Min(lambda k=2: x[pad(i + k - 1, 1, 1)] + 10), 1).evaluate([x])
    assert least.tolist() == [11, 11, 12, 13, 14]
    (spread,) = describe(lambda x: lambda i: x[i / 2], 1).evaluate([x])
    assert spread.tolist() == [1, 0, 2, 0, 3, 0, 4]
    (product,) = describe(lambda x: lambda i: tdl.Prod(lambda k=2: x[(i - k) / 2] * 1), 1).evaluate(
        [x], {"extents": {"i": 9}}
    )
    assert product.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 1]


def test_an_index_variable_is_a_value_too():
    (ramp,) = describe(lambda x: lambda i, j: x[i, j] * i + j / 2, 2).evaluate([np.ones((2, 3))])
    np.testing.assert_array_equal(ramp, [[0, 0.5, 1], [1, 1.5, 2]])
    (lower,) = describe(lambda x: lambda i, j: tdl.where(j <= i, x[i, j], 0), 2).evaluate([np.ones((3, 3))])
    np.testing.assert_array_equal(lower, np.tril(np.ones((3, 3))))


def test_mixed_radix_coordinates_read_and_write():
    x = np.arange(24.0).reshape(6, 4)
    split = describe(lambda x: lambda b, s, h: x[(b, s), h], 2)
    (apart,) = split.evaluate([x], {"extents": {"b": 2}})
    np.testing.assert_array_equal(apart, x.reshape(2, 3, 4))
    merge = describe(lambda x: lambda b, s, h: at(((b, s), h), x[b, s, h]), 3)
    np.testing.assert_array_equal(merge.evaluate([apart])[0], x)
    assert not merge.contiguous


def test_rank_zero_and_lambdas_of_any_rank():
    (result,) = describe(lambda t: lambda: t[()] * 2, 0).evaluate([np.array(3.0)])
    assert (result, result.shape) == (6, ())
    any_rank = tdl.op(lambda x: lambda *i: x[i] + 1)
    assert any_rank.describe((3,)).output_variables == ("i0", "i1", "i2")
    assert any_rank.describe((0,)).output_variables == ()
    drop = describe(lambda x: tensor(lambda *i: x[*i, 0], rank=x.rank - 1), 3)
    assert drop.output_shapes(drop.extents([(2, 3, 4)])) == ((2, 3),)


def test_opaque_results_have_a_given_operands_shape_or_given_extents():
    top = OpaqueFunction(lambda row: np.sort(row)[:2], like=None, name="top")
    description = describe(lambda x: lambda b, k: top(x[b, :])[k], 2)
    (best,) = description.evaluate([np.array([[3.0, 1.0, 2.0]])], {"extents": {"k": 2}})
    assert best.tolist() == [[1, 2]]
    with pytest.raises(TDLError, match="unknown extents of k"):
        description.extents([(2, 3)])
    solve = OpaqueFunction(np.linalg.solve, like=1)
    description = describe(lambda a, y: lambda b, i: solve(a[b, :, :], y[b, :])[i], 3, 2)
    a, y = np.stack([np.eye(3), 2 * np.eye(3)]), np.ones((2, 3))
    np.testing.assert_allclose(description.evaluate([a, y])[0], [[1, 1, 1], [0.5, 0.5, 0.5]])


def test_descriptions_are_remembered_whatever_the_shapes_and_extents():
    op = tdl.catalog["convolution_backward_input"]
    description = op.describe((4, 4), {**HALF, "extents": {"y": 8, "x": 8}})
    assert op.describe([4, 4], {"stride": [2, 2], "padding": (1, 1), "extents": {"y": 9, "x": 9}}) is description
    assert op.describe((4, 4), {"stride": (1, 1), "padding": (1, 1)}) is not description
    scale = tdl.catalog["scale"]
    assert scale.describe((1,), {"factor": 1}) is not scale.describe((1,), {"factor": True})
