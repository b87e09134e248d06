"""Compositions that use an operator without a kernel compute what the operators they stand for compute."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
from results.operator_coverage.entries import CATALOGS
from results.operator_coverage.operators import OPERATORS
from tests.results.operator_coverage import oracles_aten, oracles_mxnet

TABLES = {
    "MXNet": (CATALOGS["MXNet 0.11.0"], oracles_mxnet.ORACLES),
    "ATen": (CATALOGS["core ATen 2.11"], oracles_aten.ORACLES),
}
CASES = [(table, name) for table, (_, oracles) in TABLES.items() for name in oracles]
RANDOM = {
    "random_exponential", "random_rejection", "sample_uniform", "sample_normal", "sample_exponential",
    "sample_rejection", "sample_choice",
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


def test_every_operator_without_a_kernel_has_an_oracle_or_is_random():
    compared = {part for table, name in CASES for part in TABLES[table][0][name].composition.parts}
    assert OPERATORS.keys() - compared == RANDOM
