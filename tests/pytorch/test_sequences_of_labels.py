"""Losses of sequences of labels that are shorter than what they are read from (CTC), beside PyTorch's."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.graph import Optimizer  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from planner.pytorch.user_model import UserModel  # noqa: E402
from tests.pytorch.eager import RATE, eager_steps, imported_steps  # noqa: E402
from tests.pytorch.outcomes import outcome_of, sgd  # noqa: E402

STEPS, SAMPLES, LABELS, CLASSES, WIDTH = 9, 4, 4, 5, 3
TARGETS = torch.tensor([[1, 1, 2, 3], [4, 2, -100, -100], [3, -100, -100, -100], [-100, -100, -100, -100]])
"""Two alike in a row, with a blank between; of the last sample there are none."""

LENGTHS = torch.tensor([9, 4, 1, 5])


class Read(nn.Module):
    """A layer whose results are read as sequences of labels, by a loss of log-probabilities [t, n, c] and targets."""

    def __init__(self, loss):
        super().__init__()
        self.layer, self.loss = nn.Linear(WIDTH, CLASSES), loss

    def forward(self, x, targets, lengths):
        return self.loss(self.layer(x).log_softmax(-1), targets, lengths).sum()


def of_rows(**how):
    return lambda x, targets, lengths: F.ctc_loss(x, targets, lengths, (targets >= 0).sum(1), **how)


def selected(x, targets, lengths):
    """As Hugging Face's models of speech have it."""
    is_label = targets >= 0
    return F.ctc_loss(x, targets.masked_select(is_label), lengths, is_label.sum(-1), reduction="sum")


def selected_in_any_order(x, targets, lengths):
    is_label = targets.flip(1) >= 0
    return F.ctc_loss(x, targets.flip(1).masked_select(is_label), lengths, is_label.sum(-1))


def of_constants(x, targets, lengths):
    """What depends on no parameter is computed at import, by PyTorch."""
    fixed = torch.linspace(-1, 1, STEPS * SAMPLES * CLASSES, dtype=x.dtype).reshape(STEPS, SAMPLES, CLASSES)
    return x * F.ctc_loss(fixed.log_softmax(-1), torch.ones(SAMPLES, 2), (9, 8, 7, 6), (2, 1, 2, 0))


LOSSES = {
    "mean": of_rows(),
    "each": of_rows(reduction="none"),
    "another blank": lambda x, targets, lengths: F.ctc_loss(
        x, (targets - 1).clamp_min(-1), lengths, (targets >= 0).sum(1), blank=CLASSES - 1
    ),
    "a label that is the blank": lambda x, targets, _: F.ctc_loss(
        x[:, 0], targets[0], torch.tensor(9), torch.tensor(4), blank=2
    ),
    "of constants": of_constants,
    "selected by a mask": selected,
    "selected by a mask, labels last": selected_in_any_order,
}


@pytest.mark.parametrize("name", LOSSES)
def test_trains_like_pytorch(name):
    module = Read(LOSSES[name]).double()
    x = torch.randn(STEPS, SAMPLES, WIDTH, dtype=torch.float64)
    assert outcome_of(UserModel(module, (x, TARGETS, LENGTHS), None, (), sgd(module))) == ("right", "")


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_what_too_few_steps_cannot_say(zero_infinity):
    """Its loss is infinite and its gradients are no numbers, or it is left out."""
    module = Read(of_rows(zero_infinity=zero_infinity)).double()
    x, lengths = torch.randn(STEPS, SAMPLES, WIDTH, dtype=torch.float64), torch.tensor([4, 4, 1, 0])
    assert outcome_of(UserModel(module, (x, TARGETS, lengths), None, (), sgd(module))) == ("right", "")


def test_another_batch_may_have_another_number_of_labels():
    module, x = Read(selected).double(), torch.randn(STEPS, SAMPLES, WIDTH, dtype=torch.float64)
    graph = from_torch(module, (x, TARGETS, LENGTHS), optimizer=Optimizer("sgd", lr=RATE))
    batch = x.flip(0), torch.where(TARGETS == 2, -100, TARGETS), LENGTHS
    (ours,), _ = imported_steps(graph, module, batch, steps=1)
    (theirs,), _ = eager_steps(module, batch, steps=1)
    assert abs(ours - theirs) < 1e-12 * abs(theirs)
