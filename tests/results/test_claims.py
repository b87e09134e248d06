"""Every sentence of the papers that has a numeral or compares is a row, or stands under what cannot be checked."""

from collections import Counter

import pytest

from results import paper_operators
from results.claims import run
from results.claims.claim import CLAIMS, FAILS, HOLDS, MISSING, OTHER, VERDICTS, answered, within
from results.claims.excluded import EXCLUDED, REASONS, excluded, numbers
from results.claims.sentences import PAPERS, available, says_something, sentences
from results.experiment import ROOT, read_data
from tests.tables import kept_tables

DATA = read_data(ROOT / "results" / "claims")
ROWS = {(row["paper"], tuple(row["numbers"]), row["says"]): row for row in DATA["rows"]}


@pytest.fixture(scope="module", autouse=True)
def _paper_operators():
    with kept_tables():
        paper_operators.register()
        yield


def test_every_sentence_is_a_row_or_left_out_for_a_reason():
    every = {(sentence["paper"], sentence["number"]) for sentence in DATA["sentences"]}
    in_rows = {(row["paper"], number) for row in DATA["rows"] for number in row["numbers"]}
    left_out = {(sentence["paper"], sentence["number"]) for sentence in DATA["not_checkable"]}
    assert in_rows | left_out == every
    assert in_rows & left_out == set()
    assert len(every) == len(DATA["sentences"]) > 400
    assert {sentence["reason"] for sentence in DATA["not_checkable"]} == REASONS.keys()


def test_reasons_name_a_sentence_once():
    for paper, reasons in EXCLUDED.items():
        named = Counter(number for text in reasons.values() for number in numbers(text))
        assert [number for number, count in named.items() if count > 1] == [], paper
    assert len(excluded()) == len(DATA["not_checkable"])


def test_there_are_enough_rows_and_failures_stay():
    assert len(DATA["rows"]) >= 40
    verdicts = Counter(row["verdict"] for row in DATA["rows"])
    assert verdicts.keys() <= {*VERDICTS}
    assert min(verdicts[verdict] for verdict in (HOLDS, OTHER, FAILS)) > 5
    text = (ROOT / "results" / "claims" / "README.md").read_text()
    failed = text.partition("## What does not hold")[2].partition("## All rows")[0]
    assert failed.count("\n- ") + failed.startswith("- ") == verdicts[FAILS]


def test_a_row_lacks_a_figure_only_where_its_experiment_is_not_there():
    for row in DATA["rows"]:
        folder = row["why"].partition("results/")[2].partition(" ")[0]
        assert (row["verdict"] == MISSING) == (not row["got"])
        assert row["verdict"] != MISSING or not (ROOT / "results" / folder / "data.json").exists(), folder


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}-{claim.numbers[0]}")
def test_rows_are_worked_out_again(claim):
    row, answer = ROWS[claim.paper, claim.numbers, claim.says], answered(claim)
    assert (answer.got, answer.verdict, answer.why) == (row["got"], row["verdict"], row["why"]), (
        "run python -m results claims"
    )


def test_the_list_of_sentences_is_the_script_s():
    if not available():
        pytest.skip("the papers' texts are not at hand")
    assert run.listed() == DATA["sentences"]


def test_sentences_of_a_text(tmp_path):
    text = """1 Introduction

We cite others [3] and see Sec 4.2 of it. It takes 8.3 seconds, e.g. on a GPU. Nothing is claimed
here at all. Plan A is faster than plan B.

RNN	L=6	L=8
H=4K	8.4	11.4

This goes on over a
page and is two lines long.
"""
    (tmp_path / "toy.txt").write_text(text)
    texts = list(sentences("toy", tmp_path))
    assert [sentence.text.split()[0] for sentence in texts] == ["It", "Plan", "RNN"]
    assert [sentence.number for sentence in texts] == [1, 2, 3]
    assert {sentence.section for sentence in texts} == {"1 Introduction"}
    assert texts[0].text == "It takes 8.3 seconds, e.g. on a GPU."
    assert "8.4" in texts[2].text
    assert not says_something("As shown in Figure 3 and in Table 2 of [4, 5].")
    assert tuple(EXCLUDED) == PAPERS


def test_within():
    assert within([0.6, 0.98], 0.6, 0.98)
    assert not within([0.59, 0.7], 0.6, 0.98)
