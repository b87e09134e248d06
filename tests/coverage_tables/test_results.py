"""The committed coverage is what the code finds now."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2] / "results" / "operator-coverage"


@pytest.fixture(scope="module")
def modules():
    """Import the experiment's modules, which are in no package."""
    names = ("facts", "pages", "picture")
    sys.path.insert(0, str(HERE))
    yield tuple(import_module(name) for name in names)
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
    assert found == {key: value for key, value in committed.items() if key != "timings"}


def test_pages_and_picture_are_made_from_the_data(modules, committed):
    _, pages, picture = modules
    assert (HERE / "README.md").read_text() == pages.summary(committed)
    assert (HERE / "coverage.svg").read_text() == picture.picture(committed["counts"])
    for catalog, name in pages.PAGES.items():
        assert (HERE / name).read_text() == pages.page(committed, catalog)


def test_analysis_of_the_whole_catalog_is_fast(modules):
    facts, _, _ = modules
    assert facts.cold_seconds(facts.catalog_applications()) < 1
    assert facts.cold_seconds(facts.table_applications()) < 5
