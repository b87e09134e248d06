"""The papers' theorems: what holds is tried on a few cases, what fails must fail on its recorded counter-example."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

HERE = Path(__file__).resolve().parents[2] / "results" / "theorems"
MODULES = ("accounts", "alignment", "draws", "leveldp", "recursions", "trials", "statements")
FEW = 8


@pytest.fixture(scope="module")
def statements():
    """Import the experiment's modules, which are in no package."""
    sys.path.insert(0, str(HERE))
    yield [import_module(name) for name in MODULES][-1]
    sys.path.remove(str(HERE))
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture(scope="module")
def recorded():
    return json.loads((HERE / "data.json").read_text())["statements"]


def test_the_record_is_of_these_statements(statements, recorded):
    expected = [(one.source, one.says, one.account, one.draws) for one in statements.STATEMENTS]
    assert [(one["source"], one["says"], one["account"], one["draws"]) for one in recorded] == expected
    for one, statement in zip(recorded, statements.STATEMENTS, strict=True):
        assert (one["held"] == one["draws"]) == statement.holds, one["says"]


def test_what_holds(statements):
    for one in statements.STATEMENTS:
        if one.holds:
            verdict = statements.try_statement(one, FEW)
            assert verdict.held == verdict.draws, (one.source, one.account, verdict.counter_example)


def test_what_fails_fails_on_the_recorded_case(statements, recorded):
    for one, record in zip(statements.STATEMENTS, recorded, strict=True):
        if not one.holds:
            trial = one.draw(Random(record["seed"]))
            assert not trial.holds
            assert trial.what() == record["counter_example"]
