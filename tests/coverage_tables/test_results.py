"""The committed coverage is what the code finds now."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tdl
from results.operator_coverage.tables import OPERATORS

HERE = Path(__file__).resolve().parents[2] / "results" / "operator-coverage"


MEASURED = {"timings", "verification"}
"""What takes too long, or is another every time."""


@pytest.fixture(scope="module")
def modules():
    """Import the experiment's modules, which are in no package."""
    names = ("facts", "pages", "picture", "lines")
    sys.path.insert(0, str(HERE))
    yield tuple(import_module(name) for name in names[:3])
    sys.path.remove(str(HERE))
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def committed():
    return json.loads((HERE / "coverage.json").read_text())


def test_every_row_is_what_the_code_finds(modules, committed):
    found = json.loads(json.dumps(modules[0].coverage()))
    for catalog, groups in found["catalogs"].items():
        for group, rows in groups.items():
            for name, row in rows.items():
                assert committed["catalogs"][catalog][group][name] == row, (
                    f"{name}: run results/operator-coverage/run.py"
                )
    assert found == {key: value for key, value in committed.items() if key not in MEASURED}


def test_pages_and_picture_are_made_from_the_data(modules, committed):
    _, pages, picture = modules
    assert (HERE / "README.md").read_text() == pages.summary(committed)
    assert (HERE / "coverage.svg").read_text() == picture.picture(committed["counts"])
    for catalog, name in pages.PAGES.items():
        assert (HERE / name).read_text() == pages.page(committed, catalog)


def test_what_was_verified(committed):
    found = committed["verification"]
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


def test_analysis_of_the_whole_catalog_is_fast(modules):
    facts, _, _ = modules
    assert facts.cold_seconds(facts.catalog_applications()) < 1
    assert facts.cold_seconds(facts.table_applications()) < 5
