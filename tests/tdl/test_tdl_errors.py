"""Every wrong description or use is a TDLError that names operator, tensor, dimension and expression."""

from __future__ import annotations

import numpy as np
import pytest

import tdl
import topologies.machine
from tdl import Max, OpaqueFunction, Sum, TDLError, at, pad, tensor
from tdl.operator import CATEGORIES
from tests.tdl.paper_operators import CATALOG

OPAQUE = "OpaqueFunction"

# a description, its operands' ranks, and what the message says
WRONG = (
    (lambda x: lambda i, j: x[i * j], (1,), ["'x' dimension 0", "'i * j'", "product of two indices", OPAQUE]),
    (lambda x: lambda i: x[i % 2], (1,), ["'x' dimension 0", "'i % 2'", "modulo of an index", OPAQUE]),
    (lambda x, y: lambda i: x[y[i], 0], (2, 1), ["'x' dimension 0", "'y[i]'", "tensor value y[i]", OPAQUE]),
    (lambda x, y: lambda i: x[y[i], 0], (2, 1), ["select by value, Sum(lambda v: where(y[i] == v, ", OPAQUE]),
    (lambda x: lambda i: x[i // 2], (1,), ["floor division of an index", OPAQUE]),
    (lambda x: lambda i, j: x[i / j], (1,), ["quotient of two indices", OPAQUE]),
    (lambda x: lambda i, j: x[i < j], (1,), ["comparison of indices", OPAQUE]),
    (lambda x: lambda i, j: x[i] if i < j else x[j], (1,), ["'i < j'", "comparison of indices", "tdl.where"]),
    (lambda x: lambda i: max(x[i], 0), (1,), ["x[i]", "control flow", "tdl.maximum"]),
    (lambda x: lambda i: x[i * 0.5], (1,), ["'x' dimension 0", "0.5 is not an exact integer"]),
    (lambda x: lambda i, j: x[i, j], (1,), ["'x' has 1 dimensions but 2 indices: x[i, j]", "mixed-radix"]),
    (lambda x: lambda i, j: x[i:j], (1,), ["'x' dimension 0", "only slice allowed", "found i:j", "an index variable"]),
    (lambda x: lambda i: x[i, :], (2,), ["slice x[i, :] is not a single element", OPAQUE]),
    (lambda x: lambda i, j: x[(i, j + 1),], (1,), ["'x' dimension 0", "distinct index variables", "(i, j + 1)"]),
    (lambda x: lambda i: Sum(lambda: x[i]), (1,), ["Sum needs at least one index", "none in Sum(lambda: x[i])"]),
    (lambda x: lambda i: Sum(x[i]), (1,), ["Sum takes a lambda", "found x[i]"]),
    (lambda x: lambda i: Max(lambda *r: x[i], rank=0), (1,), ["Max needs at least one index variable"]),
    (lambda x: lambda i: Sum(lambda *r: x[i]), (1,), ["lambda *r needs rank= or names="]),
    (lambda x: lambda i: Sum(lambda i: x[i]), (1,), ["name clash", "'i'", "Sum(lambda i: x[i])"]),
    (lambda x: lambda i: Sum(lambda k: Max(lambda k: x[i, k])), (2,), ["name clash: Max binds 'k' again"]),
    (lambda x: tensor(lambda *i: x[i], names=("a", "a")), (2,), ["name clash", "lambda a, a"]),
    (lambda x: tensor(lambda i0, *i: x[i0, *i], rank=1), (2,), ["name clash", "lambda i0, i0"]),
    (lambda x: lambda **i: x[i], (1,), ["cannot be named by **i"]),
    (lambda x: lambda i=0: x[i], (1,), ["default of index variable 'i' must be its extent, found 0"]),
    (lambda x: lambda i: Sum(lambda k=2: x[i]) + Sum(lambda k=3: x[i]), (1,), ["declared with extents 2 and 3"]),
    (lambda x: lambda i: x, (1,), ["expected a scalar expression, found Operand: 'x' without an index"]),
    (lambda x: lambda i: (), (1,), ["returns no output"]),
    (lambda x: x[0], (1,), ["must return a lambda", "x[0]"]),
    (lambda x: lambda i: at((i, i), x[i]), (1,), ["output coordinates (i, i)", "once"]),
    (lambda x: lambda i, j: at((i,), x[i]), (1,), ["no output has a dimension of j"]),
    (lambda x: lambda i, j: (x[i, j], at((i,), x[i, j])), (2,), ["index 'j' in x[i, j] is used outside the lambda"]),
    (lambda x: lambda i: x[pad(i, 1, 1) + 1], (1,), ["pad(i, ...) must be the entire index"]),
    (lambda x: lambda i: sum(x), (1,), ["'x' is a tensor and cannot be iterated over"]),
    (lambda x: lambda i: sum(x[i]), (1,), ["x[i] is a single element and cannot be iterated over"]),
    (lambda x: lambda i: np.float64(2) * float(x[i]), (1,), ["x[i] is symbolic", "tdl.exp"]),
    (lambda x: lambda i: np.arctan(x[i]), (1,), ["numpy.arctan of 'x[i]'", "tdl.exp"]),
    (lambda x: lambda i, j: OpaqueFunction(name="f")(x[:])[i, j], (1,), ["f(x[:])[i, j] has 2 indices", "1 sliced"]),
    (lambda x: lambda i: OpaqueFunction(like=2)(x[:])[i], (1,), ["shape of its operand 2"]),
    (lambda x: lambda i: Summ(lambda k: x[k]), (1,), ["cannot describe ranks (1,)", "NameError: name 'Summ'"]),  # noqa: F821
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_descriptions(number):
    function, ranks, says = WRONG[number]
    function.__name__ = "wrong"
    with pytest.raises(TDLError) as caught:
        tdl.op(function).describe(ranks)
    message = str(caught.value)
    assert message.startswith("wrong: ")
    for part in says:
        assert part in message


def test_a_variable_escaping_its_lambda_is_named():
    def wrong(x):
        escaped = []
        return lambda i: Sum(lambda k: escaped.append(k) or x[k]) + escaped[0]

    with pytest.raises(TDLError, match="wrong: index 'k' in k is used outside the lambda"):
        tdl.op(wrong).describe((1,))


POOL = {"stride": (1, 1), "padding": (0, 0), "kernel": (2, 2)}
CONV = {"stride": (1, 1), "padding": (0, 0)}

# operator, shapes, attributes, and what the message says
MISUSED = (
    ("mm", [(2, 3)], {}, r"mm: expected 2 operands \(a, b\), found 1"),
    ("add_n", [], {}, "add_n: expected at least 1 operand"),
    ("mm", [(2, 3), (3, 4)], {"transpose": True}, "mm: unknown attribute 'transpose'; .* transpose_a, transpose_b"),
    ("scale", [(2,)], {}, "scale: missing attribute 'factor'"),
    ("convolution", [(1, 1, 4, 4), (1, 1, 3, 3)], {"stride": "3", "padding": (0, 0)}, "convolution: cannot describe"),
    ("mm", [(2, 3), (4, 5)], {}, r"mm: inconsistent extents of 'k': 3 by a\[1\], 4 by b\[0\]"),
    ("mm", [(2, 3), (3, 5)], {"extents": {"i": 4}}, r"extents of 'i': 4 by attribute 'extents', 2 by a\[0\]"),
    ("mm", [(2, 3), (3, 5)], {"extents": {"q": 4}}, "mm: attribute 'extents' contains 'q'; expected one of .* i, j, k"),
    ("mm", [(2, 3), (3, 5)], {"extents": {"i": 2.0}}, "mm: attribute 'extents' must map index variables to integers"),
    ("shift_two", [(9,)], {"extents": {"i": 8}}, r"'i': 8 by attribute .* index i \+ 2 .* a\[0\] only up to 7"),
    ("convolution_backward_input", [(1, 1, 4, 4), (1, 1, 3, 3)], {**CONV, "stride": (2, 2), "padding": (1, 1)},
     r"convolution_backward_input: no extent of 'y'"),
    ("expand", [(3,)], {"dims": (0,), "extents": {"e0": -1}}, "expand: attribute 'extents' gives 'e0' the extent -1"),
    ("expand", [(3,)], {"dims": (0,)}, "expand: unknown extents of e0: .* no index .* attribute 'extents'"),
    ("avg_pool2d", [(1, 1, 4, 4)], {**POOL, "extents": {"dy": 3}}, "'dy' is 2 as declared, 3 by attribute"),
    ("unbind", [(2, 3)], {"dim": 0, "n": 3}, r"unbind: index 2 is outside x\[0\], which has 2 elements"),
    ("reshape", [(12,)], {"source": (("v0", "v1"),), "target": (("v0",), ("v1",))}, "does not determine v0, v1"),
    ("reshape", [(12,)], {"source": (("v0", "v1"),), "target": (("v0",), ("v1",)), "extents": {"v0": 5}},
     r"reshape: x\[0\] is 12, which does not determine v1"),
    ("reshape", [(2, 3)], {"source": (("v0",), ("v1",)), "target": (("v0",),)}, "not groupings of the same variables"),
    ("einsum", [(2, 3)], {"equation": "ii->i"}, "repeats a letter within a tensor"),
    ("einsum", [(2, 3)], {"equation": "ijk->i"}, "does not fit operands of ranks"),
    ("amax", [(2, 0)], {"dims": (1,)}, "amax: Max over 'r0' is undefined: the extent of 'r0' is 0"),
    ("sum", [(2, 3)], {"dims": (2,)}, r"sum: dims \(2,\) are not distinct dimensions of 'x', which has 2"),
)  # fmt: skip


@pytest.mark.parametrize("row", MISUSED, ids=lambda row: f"{row[0]}: {row[3]}")
def test_misused_operators(row):
    op, shapes, attributes, says = row
    with pytest.raises(TDLError, match=says):
        CATALOG[op].describe([len(shape) for shape in shapes], attributes).extents(shapes, attributes)


def test_unknown_extents_name_the_indices_they_stand_in():
    description = tdl.op(lambda x: lambda i, j: x[2 * i + j]).describe((1,))
    with pytest.raises(TDLError, match=r"unknown extents of i, j: .* by 2\*i \+ j in x\[0\]; give them"):
        description.extents([(9,)])


def test_numpy_functions_of_the_same_name_are_the_languages_own():
    by_numpy = tdl.op(lambda x: lambda i: np.exp(x[i]) + np.float64(2) * x[i]).describe((1,))
    other = tdl.op(lambda x: lambda i: tdl.exp(x[i]) + 2.0 * x[i]).describe((1,))
    assert [str(output.value) for output in by_numpy.outputs] == [str(output.value) for output in other.outputs]


def test_extents_is_no_name_for_an_attribute():
    def wrong(x, *, extents=2):
        return lambda i: x[i]

    with pytest.raises(TDLError, match="wrong: attribute 'extents' is reserved"):
        tdl.op(wrong)


def relu(x):
    return lambda i: x[i]


def test_a_name_that_is_taken():
    with pytest.raises(TDLError, match=r"relu: name clash: .* described in tdl\.catalog\.\w+; choose another name"):
        tdl.register(tdl.op(relu))
    assert tdl.catalog["relu"].function is not relu


def test_shapes_must_fit_the_described_ranks():
    description = tdl.catalog["mm"].describe((2, 2))
    with pytest.raises(TDLError, match="mm: 'b' was described with 2 dimensions, found shape"):
        description.extents([(2, 3), (3,)])
    with pytest.raises(TDLError, match="mm: described for 2 operands, found 1 shapes"):
        description.extents([(2, 3)])


def test_opaque_without_a_function_has_no_reference_evaluation():
    description = tdl.op(lambda x: lambda i: OpaqueFunction(name="f")(x[:])[i]).describe((1,))
    with pytest.raises(TDLError, match="f has no reference function"):
        description.evaluate([np.ones(3)])


def test_an_opaque_function_that_fails_is_named():
    with pytest.raises(TDLError, match=r"batch_cholesky: cholesky of shapes \(2, 3\): LinAlgError: Last 2 dimensions"):
        CATALOG["batch_cholesky"].describe((3,)).evaluate([np.ones((4, 2, 3))])
    (nothing,) = CATALOG["batch_cholesky"].describe((3,)).evaluate([np.ones((0, 2, 2))])
    assert nothing.shape == (0, 2, 2)


def test_attributes_are_plain_values():
    with pytest.raises(TDLError, match=r"scale: attributes must be numbers, .* found {'factor': {1, 2}}"):
        tdl.catalog["scale"].describe((1,), {"factor": {1, 2}})


def test_what_is_registered_is_an_operator():
    with pytest.raises(TDLError, match=r"relu: only operators can be registered; put @tdl\.op between"):
        tdl.register(relu)


def test_categories_are_those_of_machines():
    with pytest.raises(TDLError, match=r"relu: category must be one of matmul, .*, other, found 'matmull'"):
        tdl.op(category="matmull")(relu)
    assert CATEGORIES == topologies.machine.CATEGORIES


def test_descriptions_take_named_tensors_or_all():
    with pytest.raises(TDLError, match="named tensors or"):
        tdl.op(lambda x, *xs: lambda i: x[i])
