"""The papers' theorems: what holds is tried on a few cases, what fails must fail on its recorded counter-example."""

from __future__ import annotations

from random import Random

import pytest

from results import paper_operators
from results.experiment import read_data
from results.theorems import statements
from results.theorems.run import HERE
from tests.tables import kept_tables

FEW = 8
RECORDED = read_data(HERE)["statements"]


@pytest.fixture(scope="module", autouse=True)
def _paper_operators():
    with kept_tables():
        paper_operators.register()
        yield


def test_the_record_is_of_these_statements():
    expected = [(one.source, one.says, one.account, one.draws) for one in statements.STATEMENTS]
    assert [(one["source"], one["says"], one["account"], one["draws"]) for one in RECORDED] == expected
    for one, statement in zip(RECORDED, statements.STATEMENTS, strict=True):
        assert (one["held"] == one["draws"]) == statement.holds, one["says"]


def test_what_holds():
    for one in statements.STATEMENTS:
        if one.holds:
            verdict = statements.try_statement(one, FEW)
            assert verdict.held == verdict.draws, (one.source, one.account, verdict.counter_example)


def test_what_fails_fails_on_the_recorded_case():
    for one, record in zip(statements.STATEMENTS, RECORDED, strict=True):
        if not one.holds:
            trial = one.draw(Random(record["seed"]))
            assert not trial.holds
            assert trial.what() == record["counter_example"]
