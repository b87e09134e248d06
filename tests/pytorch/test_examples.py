"""The examples train on several workers as PyTorch trains them: a draw of what results/pytorch_training has."""

import pytest

pytest.importorskip("torch")

from results.experiment import ROOT, read_data
from results.pytorch_training.beside import ADAM, SGD, Case, compared
from results.pytorch_training.measure import cases
from results.pytorch_training.run import ADAM_BARS, BARS, NAMES


def test_there_are_examples():
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_workers_train_like_eager(name):
    number = NAMES.index(name)
    case = Case(name, (2, 1)[number // 4], tuple(BARS)[number % 2], SGD)
    found = compared(case)
    assert found.loss < BARS[case.dtype]
    assert found.worst < BARS[case.dtype], found.entries


def test_eight_workers_train_like_eager():
    found = compared(Case("gpt", 8, "float64", SGD))
    assert max(found.loss, found.worst) < BARS["float64"]


def test_adam_trains_what_has_a_gradient():
    found = compared(Case("vit", 2, "float64", ADAM))
    assert found.loss < BARS["float64"]
    assert found.worst_told < ADAM_BARS["float64"]
    assert len(found.told) > len(found.entries) // 2


def test_the_published_training():
    rows = read_data(ROOT / "results" / "pytorch_training")["rows"]
    assert {(row["name"], row["workers"], row["dtype"], row["optimizer"]) for row in rows} == {
        (case.name, case.workers, case.dtype, case.optimizer) for name in NAMES for case in cases(name)
    }
    for row in rows:
        bars = BARS if row["optimizer"] == SGD else ADAM_BARS
        assert row["loss"] < BARS[row["dtype"]]
        assert row["worst" if row["optimizer"] == SGD else "worst_told"] < bars[row["dtype"]], row
