"""Index arithmetic is exact, and images of index expressions equal enumeration."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from hypothesis import given, strategies as st

from tdl import Affine, Digits, Whole

NAMES = ("x", "y", "z")
rationals = st.builds(Fraction, st.integers(-6, 6), st.integers(1, 5))
affines = st.builds(Affine.of, st.dictionaries(st.sampled_from(NAMES), rationals, max_size=3), rationals)
ranges = st.tuples(st.integers(-4, 4), st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))
bounds = st.fixed_dictionaries(dict.fromkeys(NAMES, ranges))


def points(index: Affine, where: dict[str, tuple[int, int]]) -> set[Fraction]:
    names = index.variables
    return {
        index.constant + sum(dict(index.terms)[n] * v for n, v in zip(names, values, strict=True))
        for values in product(*(range(*where[name]) for name in names))
    }


@given(affines, bounds)
def test_image_is_the_hull_of_the_integer_points_reached(index, where):
    reached = [point for point in points(index, where) if point.denominator == 1]
    assert index.image(where) == ((min(reached), max(reached) + 1) if reached else (0, 0))


@given(affines, affines, rationals, st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(-9, 9))))
def test_arithmetic_is_pointwise(a, b, factor, values):
    assert (a + b).value(values) == a.value(values) + b.value(values)
    assert (a - b).value(values) == a.value(values) - b.value(values)
    assert a.scaled(factor).value(values) == a.value(values) * factor


@given(affines, affines)
def test_equal_expressions_are_equal_however_written(a, b):
    assert a + b == b + a
    assert hash(a + b) == hash(b + a)
    assert a + b - b == a
    assert a.scaled(3).scaled(Fraction(1, 3)) == a


def test_coefficients_are_ints_where_they_can_be():
    half = Affine.variable("x").scaled(Fraction(1, 2))
    assert type((half + half).terms[0][1]) is int
    assert (half + half).is_plain


def test_only_one_unpadded_variable_as_it_is_is_plain():
    x = Affine.variable("x")
    assert x.is_plain
    for other in (x.scaled(2), x + Affine((), 1), x + Affine.variable("y"), x.padded(1, 0), Affine((), 0)):
        assert not other.is_plain
    assert not Digits(("x",)).is_plain
    assert not Whole().is_plain


def test_images_of_the_gradient_of_a_strided_convolution_skip_points_between():
    index = (Affine.variable("y") - Affine.variable("dy") + Affine((), 1)).scaled(Fraction(1, 2))
    assert index.image({"y": (0, 1), "dy": (0, 1)}) == (0, 0)
    assert index.image({"y": (0, 1), "dy": (1, 2)}) == (0, 1)
    assert index.image({"y": (3, 6), "dy": (0, 3)}) == (1, 4)
