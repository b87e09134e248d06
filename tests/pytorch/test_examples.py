"""The examples train on several workers as PyTorch trains them: all workers in one process."""

import pytest

pytest.importorskip("torch")

from tests.pages import ROOT
from tests.pytorch.beside import ADAM, SGD, Case, compared

NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if "def small(" in path.read_text())
BARS = {"float64": 1e-10, "float32": 1e-4}
"""How far losses and tensors may be from PyTorch's, relative to the largest value of each."""

ADAM_BAR = 1e-6
"""The same under Adam, which divides a gradient by its own size."""


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
    assert found.worst_told < ADAM_BAR
    assert len(found.told) > len(found.entries) // 2
