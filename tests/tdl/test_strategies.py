"""Which variables split an operator, how parts are combined, and why the others do not."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tdl
from tdl import Max, Min, OpaqueFunction, Prod, Sum, sqrt, where
from tests.tdl.paper_operators import CATALOG

HOW = {"stride": (2, 2), "padding": (1, 1)}
POOL = {**HOW, "kernel": (3, 3)}

# operator, ranks, attributes, concatenated, reduced, refused, contiguous, element-wise
TABLE = (
    ("add", (4, 1), {"dims": (1,)}, "i0 i1 i2 i3", "", "", "", True),
    ("add_n", (2, 2, 2), {}, "i0 i1", "", "", "", True),
    ("mm", (2, 2), {}, "i j", "k+Sum", "", "", False),
    ("einsum", (2, 3), {"equation": "bi,ghi->bgh"}, "b g h", "i+Sum", "", "", False),
    ("convolution", (4, 4), HOW, "n co y x", "ci+Sum dy+Sum dx+Sum", "", "y x dy dx", False),
    ("convolution_backward_input", (4, 4), HOW, "n ci y x", "co+Sum dy+Sum dx+Sum", "", "y x dy dx", False),
    ("max_pool2d_with_indices", (4,), POOL, "n c y x", "", "wy wx dy dx", "y x wy wx dy dx", False),
    ("avg_pool2d", (4,), POOL, "n c y x", "dy+Sum dx+Sum", "", "y x dy dx", False),
    ("sum", (3,), {"dims": (1,)}, "i0 i1", "r0+Sum", "", "", False),
    ("amax", (2,), {"dims": (1,)}, "i0", "r0+Max", "", "", False),
    ("batch_norm_backward_reduce", (4, 4, 1, 1), {"eps": 0.1}, "c", "n+Sum y+Sum x+Sum", "", "", False),
    ("cross_entropy", (2, 1, 1, 1), {"count": 4}, "", "b+Sum c+Sum", "", "c", False),
    ("cross_entropy_backward", (2, 1, 1, 1), {"factor": 0.1}, "b c", "", "", "c", True),
    ("reshape", (2,), {"source": (("v0", "v1"), ("v2",)), "target": (("v0",), ("v1",), ("v2",))},
     "v0 v1 v2", "", "", "", False),
    ("stack", (1, 1), {"dim": 0}, "i0 s", "", "", "s", False),
    ("shift_two", (1,), {}, "i", "", "", "i", False),
    ("conv1d", (3, 3), {}, "b co x", "ci+Sum dx+Sum", "", "x dx", False),
    ("batch_cholesky", (3,), {}, "b", "", "i j", "", False),
)  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}")
def test_strategies_refusals_contiguous_and_elementwise(row):
    op, ranks, attributes, concatenated, reduced, refused, contiguous, elementwise = row
    description = CATALOG[op].describe(ranks, attributes)
    spelled = {f"{s.variable}+{s.reducer}" if s.reducer else s.variable for s in description.strategies.values()}
    assert spelled == set(concatenated.split()) | set(reduced.split())
    assert set(description.refusals) == set(refused.split())
    assert set(description.strategies) | set(description.refusals) == set(description.variables)
    assert description.contiguous == set(contiguous.split())
    assert description.is_elementwise is elementwise


def describe(function, *ranks):
    return tdl.op(function).describe(ranks)


def test_reducer_under_a_function_is_refused_with_the_reason():
    description = describe(lambda x: lambda i: sqrt(Sum(lambda k: x[i, k] ** 2)), 2)
    assert description.refusals == {"k": "partial results of Sum cannot be combined under sqrt"}


# the expression over k, and the reducer that combines parts of k (None: refused)
COMBINING = (
    (lambda x, y, i: -Sum(lambda k: x[i, k]), "Sum"),
    (lambda x, y, i: y[i] * Sum(lambda k: x[i, k]), "Sum"),
    (lambda x, y, i: Sum(lambda k: x[i, k]) / sqrt(y[i] + 2), "Sum"),
    (lambda x, y, i: Sum(lambda k: x[i, k]) - Sum(lambda k: y[k]), "Sum"),
    (lambda x, y, i: Sum(lambda j: y[j] * Sum(lambda k: x[j, k])), "Sum"),
    (lambda x, y, i: 2 * Max(lambda k: x[i, k]), "Max"),
    (lambda x, y, i: Max(lambda j: Max(lambda k: x[j, k])), "Max"),
    (lambda x, y, i: Min(lambda k: x[i, k]) / 4, "Min"),
    (lambda x, y, i: Prod(lambda k: x[i, k]), "Prod"),
    (lambda x, y, i: Sum(lambda k: x[i, k]) + y[i], None),
    (lambda x, y, i: 1 / Sum(lambda k: x[i, k]), None),
    (lambda x, y, i: -2 * Max(lambda k: x[i, k]), None),
    (lambda x, y, i: y[i] * Max(lambda k: x[i, k]), None),
    (lambda x, y, i: Max(lambda j: Sum(lambda k: x[j, k])), None),
)  # fmt: skip
UFUNC = {"Sum": np.add, "Max": np.maximum, "Min": np.minimum, "Prod": np.multiply}


@pytest.mark.parametrize("number", range(len(COMBINING)))
def test_a_reduction_splits_only_where_combining_parts_is_right(number):
    body, reducer = COMBINING[number]
    description = describe(lambda x, y: lambda i: body(x, y, i), 2, 1)
    strategy = description.strategies.get("k")
    assert (strategy and strategy.reducer) == reducer
    rng = np.random.default_rng(number)
    arrays = (rng.uniform(-1, 1, (8, 8)), rng.uniform(-1, 1, 8))
    extents = {"i": 8} if "i" not in {n for a in description.accesses for d in a.index for n in d.variables} else {}
    attributes = {"extents": extents}
    (whole,) = description.evaluate(arrays, attributes)
    parts = [description.evaluate(arrays, attributes, bounds={"k": part})[0] for part in ((0, 3), (3, 8))]
    if reducer is not None:
        np.testing.assert_allclose(UFUNC[reducer](*parts), whole)
    else:
        (own,) = re.findall(r"partial results of (\w+)", description.refusals["k"])
        assert not np.allclose(UFUNC[own](*parts), whole)


def test_outputs_must_agree_on_a_reduction():
    differ = describe(lambda x: lambda i: (Sum(lambda k: x[i, k]), Max(lambda k: x[i, k])), 2)
    assert differ.refusals == {"k": "outputs reduce over it differently: Sum, Max"}
    lacking = describe(lambda x, y: lambda i: (Sum(lambda k: x[i, k]), y[i]), 2, 1)
    assert lacking.refusals == {"k": "output 1 does not reduce over it"}
    agree = describe(lambda x: lambda i: (Sum(lambda k: x[i, k]), Sum(lambda k: x[k, i]) / 2), 2)
    assert agree.strategies["k"].reducer == "Sum"


def test_opaque_functions_split_along_what_selects_their_operands_only():
    svd = OpaqueFunction(name="svd")
    description = describe(lambda x, y: lambda b, i, j: svd(x[b, :, :], y[b, :])[i, j], 3, 2)
    assert set(description.strategies) == {"b"}
    assert description.refusals["i"] == "it indexes the result of svd, which is computed whole"
    assert description.accesses[0].index[1:] == (tdl.Whole(), tdl.Whole())


HALOS = (
    ("shift_two", (1,), {}, "i", {}, {(0, 0): (0, 2)}),
    ("conv1d", (3, 3), {}, "x", {"dx": 3}, {(0, 2): (0, 2)}),
    ("convolution", (4, 4), HOW, "x", {"dx": 3}, {(0, 3): (1, 0)}),
    ("convolution_backward_input", (4, 4), {"stride": (1, 1), "padding": (1, 1)}, "y", {"dy": 3}, {(0, 2): (1, 1)}),
    ("mm", (2, 2), {}, "i", {}, {}),
)


@pytest.mark.parametrize("row", HALOS, ids=lambda row: f"{row[0]}-{row[3]}-{row[5]}")
def test_halo_widths(row):
    op, ranks, attributes, variable, extents, expected = row
    strategy = CATALOG[op].describe(ranks, attributes).strategies[variable]
    assert {(h.operand, h.dimension): h.widths(extents) for h in strategy.halos} == expected


def test_halos_are_what_access_regions_reach_beyond_the_share():
    conv = tdl.catalog["convolution"].describe((4, 4), HOW)
    index, extents = conv.accesses[0].index[2], {"y": 16, "dy": 5}
    (halo,) = conv.strategies["y"].halos
    below, above = halo.widths(extents)
    for start, stop in ((0, 8), (8, 16), (4, 6)):
        low, high = index.image({"y": (start, stop), "dy": (0, 5)})
        assert (low, high) == (2 * start - below, 2 * stop + above)


def test_elementwise_needs_an_operand_read_at_the_outputs_own_coordinates_only():
    assert describe(lambda x, y: lambda i, j: where(x[i, j] > y[j], i, 0), 2, 1).is_elementwise
    assert not describe(lambda x: lambda i, j: x[i, j] + x[j, i], 2).is_elementwise
    assert not describe(lambda x: lambda i: x[i, i], 2).is_elementwise
    assert not describe(lambda x: lambda i, j: x[j, i], 2).is_elementwise
    assert not describe(lambda x, y: lambda i, j: x[i] * y[j], 1, 1).is_elementwise
    assert not describe(lambda x: lambda i: (x[i], x[i + 1]), 1).is_elementwise


@pytest.mark.parametrize(
    ("op", "ranks", "attributes", "linear", "not_linear"),
    [
        ("add", (2, 2), {}, [{0, 1}], [{0}, {1}]),
        ("div", (2, 2), {}, [{0}], [{1}, {0, 1}]),
        ("mm", (2, 2), {}, [{0}, {1}], [{0, 1}]),
        ("relu", (2,), {}, [], [{0}]),
        ("threshold_backward", (2, 2), {}, [{0}], [{1}]),
        ("sgd", (1, 1), {"lr": 0.1}, [{0, 1}], [{0}]),
    ],
)
def test_linearity(op, ranks, attributes, linear, not_linear):
    description = CATALOG[op].describe(ranks, attributes)
    assert all(description.linear(frozenset(operands)) for operands in linear)
    assert not any(description.linear(frozenset(operands)) for operands in not_linear)


HEADS = [(1, 6, 5, 8), (1, 2, 7, 8), (1, 2, 7, 9)]
"""Six heads of 5 queries, two of 7 keys 8 wide and values 9 wide: products, then scale, exponential and sum."""


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "operations"),
    [
        ("mm", [(3, 4), (4, 5)], {}, 2 * 3 * 5 * 4),
        ("sgd", [(3, 4), (3, 4)], {"lr": 0.1}, 24),
        ("embedding", [(50, 8), (3,)], {}, 3 + 2 * 3 * 8),  # compare, choose, add: one row of 50
        ("cumsum", [(4,)], {"dim": 0, "extents": {"i0": 4}}, 4 * 4 / 2),
        ("attention", HEADS, {"scale": 1.0}, 6 * 5 * 7 * (2 * 8 + 2 * 9 + 2 + 1) + 6 * 5 * (9 + 1)),
        ("attention", HEADS, {"scale": 1.0, "causal": True}, 6 * 5 * 7 / 2 * (2 * 8 + 2 * 9 + 2 + 1) + 6 * 5 * (9 + 1)),
    ],
)
def test_operations(op, shapes, attributes, operations):
    description = CATALOG[op].describe([len(shape) for shape in shapes], attributes)
    assert description.operations(description.extents(shapes, attributes)) == operations


def test_gradient_of_a_strided_convolution_counts_the_iterations_that_exist():
    shapes, how = [(2, 4, 8, 8), (4, 3, 3, 3)], {**HOW, "extents": {"y": 16, "x": 16}}
    backward = tdl.catalog["convolution_backward_input"].describe((4, 4), how)
    forward = tdl.catalog["convolution"].describe((4, 4), HOW)
    operations = backward.operations(backward.extents(shapes, how))
    assert operations == forward.operations(forward.extents([(2, 3, 16, 16), (4, 3, 3, 3)], HOW))
