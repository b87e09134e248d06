"""Compositions compute what the operators they stand for compute; random tensors have their distribution."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from results.operator_coverage.entries import CATALOGS
from results.operator_coverage.operators import OPERATORS
from tests.results.operator_coverage import oracles_mxnet

HAS_TORCH = find_spec("torch") is not None
if HAS_TORCH:
    from tests.results.operator_coverage import oracles_aten

TABLES = {
    "MXNet": (CATALOGS["MXNet 0.11.0"], oracles_mxnet.ORACLES),
    "ATen": (CATALOGS["core ATen 2.11"], oracles_aten.ORACLES if HAS_TORCH else {}),
}
CASES = [(table, name) for table, (_, oracles) in TABLES.items() for name in oracles]
RANDOM = {"rand", "randn", "dropout", "random_exponential", "random_rejection"} | {
    "sample_uniform", "sample_normal", "sample_exponential", "sample_rejection", "sample_choice",
}  # fmt: skip


@pytest.mark.parametrize(("table", "name"), CASES, ids=lambda part: part)
def test_compositions_compute_what_they_stand_for(table, name):
    entries, oracles = TABLES[table]
    composition, oracle = entries[name].composition, oracles[name]
    arrays = dict(zip(composition.operands, oracle.operands, strict=True))
    expected = oracle.function(*oracle.operands)
    expected = expected if isinstance(expected, tuple) else (expected,)
    results = composition.evaluate(arrays)
    assert len(results) == len(expected)
    for result, right in zip(results, expected, strict=True):
        assert result.shape == np.shape(right)
        np.testing.assert_allclose(result, right, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(not HAS_TORCH, reason="the oracles of ATen are PyTorch's functions")
def test_every_composition_has_an_oracle_or_is_random():
    known = {TABLES[table][0][name].text for table, name in CASES}
    for entries, _ in TABLES.values():
        for name, entry in entries.items():
            if entry.text is not None and entry.text not in known:
                assert RANDOM & set(entry.composition.parts), name


@pytest.mark.parametrize(
    ("name", "attributes", "mean", "variance"),
    [
        ("random_exponential", {"rate": 2.0}, 0.5, 0.25),
        ("random_rejection", {"distribution": "gamma", "parameters": (2.0, 0.5)}, 1.0, 0.5),
        ("random_rejection", {"distribution": "poisson", "parameters": (2.0,)}, 2.0, 2.0),
        ("random_rejection", {"distribution": "negative_binomial", "parameters": (3, 0.5)}, 3.0, 6.0),
        ("random_rejection", {"distribution": "generalized_negative_binomial", "parameters": (2.0, 0.5)}, 2.0, 4.0),
    ],
)
def test_random_tensors_have_their_distribution(name, attributes, mean, variance):
    described = OPERATORS[name].describe((), {**attributes, "rank": 2})
    extents = {"i0": 40, "i1": 60}
    (values,) = described.evaluate([], None, extents)
    assert_moments(values, mean, variance)
    (part,) = described.evaluate([], None, extents, {"i0": (7, 9), "i1": (3, 60)})
    np.testing.assert_array_equal(part, values[7:9, 3:])


@pytest.mark.parametrize(
    ("name", "attributes", "parameters", "mean", "variance"),
    [
        ("sample_uniform", {}, (-1.0, 2.0), 0.5, 0.75),
        ("sample_normal", {}, (1.0, 2.0), 1.0, 4.0),
        ("sample_exponential", {}, (2.0,), 0.5, 0.25),
        ("sample_rejection", {"distribution": "gamma"}, (2.0, 0.5), 1.0, 0.5),
        ("sample_rejection", {"distribution": "poisson"}, (2.0,), 2.0, 2.0),
    ],
)
def test_random_rows_have_their_distribution(name, attributes, parameters, mean, variance):
    given = [np.full(2, value) for value in parameters]
    described = OPERATORS[name].describe([1] * len(given), {**attributes, "draws": 1000})
    (values,) = described.evaluate(given)
    assert values.shape == (2, 1000)
    assert_moments(values, mean, variance)


def test_choices_have_their_chances():
    weights = np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    (chosen,) = OPERATORS["sample_choice"].describe((2,), {"draws": 800}).evaluate([weights])
    shares = [(chosen == k).mean(1) for k in range(3)]
    np.testing.assert_allclose(np.stack(shares, 1), weights, atol=0.06)


def assert_moments(values, mean, variance):
    error = np.sqrt(variance / values.size)
    assert abs(values.mean() - mean) < 5 * error
    assert abs(values.var() / variance - 1) < 0.25
