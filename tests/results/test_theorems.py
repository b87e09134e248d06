"""The papers' theorems: what holds is tried on a few cases, what fails must fail on its recorded counter-example."""

from __future__ import annotations

from random import Random

import pytest

from results.experiment import read_data
from results.theorems import statements
from results.theorems.run import HERE

pytestmark = pytest.mark.usefixtures("papers")
FEW = 8
RECORDED = read_data(HERE)["statements"]


def test_the_record_is_of_these_statements():
    expected = [
        (statement.source, statement.says, statement.account, statement.draws) for statement in statements.STATEMENTS
    ]
    assert [(record["source"], record["says"], record["account"], record["draws"]) for record in RECORDED] == expected
    for record, statement in zip(RECORDED, statements.STATEMENTS, strict=True):
        assert (record["held"] == record["draws"]) == statement.holds, record["says"]


def test_what_holds():
    for statement in statements.STATEMENTS:
        if statement.holds:
            verdict = statements.try_statement(statement, FEW)
            assert verdict.held == verdict.draws, (statement.source, statement.account, verdict.counter_example)


def test_what_fails_fails_on_the_recorded_case():
    for statement, record in zip(statements.STATEMENTS, RECORDED, strict=True):
        if not statement.holds:
            trial = statement.draw(Random(record["seed"]))
            assert not trial.holds
            assert trial.what() == record["counter_example"]
