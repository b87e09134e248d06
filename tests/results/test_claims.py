"""Every sentence of the papers that has a numeral or compares is a row, or stands under what cannot be checked."""

import pytest

from results.claims.claim import CLAIMS, MISSING, answered
from results.claims.run import REASONS
from results.experiment import ROOT, read_data

pytestmark = pytest.mark.usefixtures("papers")
DATA = read_data(ROOT / "results" / "claims")
ROWS = {(row["paper"], tuple(row["numbers"]), row["says"]): row for row in DATA["rows"]}


def test_every_sentence_is_a_row_or_left_out_for_a_reason():
    every = {(sentence["paper"], sentence["number"]) for sentence in DATA["sentences"]}
    in_rows = {(row["paper"], number) for row in DATA["rows"] for number in row["numbers"]}
    left_out = {(sentence["paper"], sentence["number"]) for sentence in DATA["not_checkable"]}
    assert in_rows | left_out == every
    assert in_rows & left_out == set()
    assert {sentence["reason"] for sentence in DATA["not_checkable"]} == REASONS.keys()
    assert MISSING not in {row["verdict"] for row in DATA["rows"]}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}-{claim.numbers[0]}")
def test_rows_are_worked_out_again(claim):
    row, answer = ROWS[claim.paper, claim.numbers, claim.says], answered(claim)
    assert (answer.got, answer.verdict, answer.why) == (row["got"], row["verdict"], row["why"]), (
        "run python -m results claims"
    )
