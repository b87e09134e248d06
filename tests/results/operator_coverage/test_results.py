"""The committed coverage is what the code finds now."""

from __future__ import annotations

import json

import pytest

import tdl
from results.experiment import read_data
from results.operator_coverage import facts
from results.operator_coverage.run import HERE, read_verification
from results.operator_coverage.tables import OPERATORS

MEASURED = {"timings"}
"""What takes too long, or is another every time."""


@pytest.fixture(scope="module")
def committed():
    return read_data(HERE)


def test_every_row_is_what_the_code_finds(committed):
    found = json.loads(json.dumps(facts.coverage()))
    for catalog, groups in found["catalogs"].items():
        for group, rows in groups.items():
            for name, row in rows.items():
                assert committed["catalogs"][catalog][group][name] == row, (
                    f"{name}: run python -m results.operator_coverage.run --facts"
                )
    assert found == {key: value for key, value in committed.items() if key not in MEASURED}


def test_what_was_verified():
    found = read_verification()
    operators = {group: own["operators"] for group, own in found["soundness"].items()}
    assert operators == {"with a kernel": len(tdl.catalog), "without a kernel": len(OPERATORS)}
    assert min(own["fewest shapes of a strategy"] for own in found["soundness"].values()) >= 50
    assert all(own["described"] == own["ATen operators"] for own in found["training steps"].values())
    assert all(killed == made >= 100 for killed, made in found["mutants"].values())
    assert found["mutants without a kernel"]["killed"] > 0.98 * found["mutants without a kernel"]["mutants"]


def test_most_descriptions_are_within_three_lines(committed):
    for own in committed["lines"].values():
        assert sum(own.get(str(number), 0) for number in (1, 2, 3)) > sum(own.values()) / 2
    assert sum(committed["lines"]["with a kernel"].values()) == len(tdl.catalog)


def test_descriptions_are_remembered_whatever_the_shapes(committed):
    found = committed["descriptions"]
    assert found["wresnet-50-4"]["descriptions"] == found["wresnet-152-4"]["descriptions"] < 100
    counted = {name for name in tdl.catalog if {"count", "factor"} & set(tdl.catalog[name].attributes)}
    for own in found.values():
        assert own["descriptions"] <= own["signatures"] < own["nodes"]
        assert set(own["new"]) <= counted
