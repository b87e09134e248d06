"""Connectionist temporal classification (CTC): the loss of label sequences shorter than their input."""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's

from __future__ import annotations

from math import inf
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from planner.pytorch.capture.autograd_functions import define
from planner.pytorch.translate.compositions import with_gradient

NEVER, IMPOSSIBLE = -1e30, 1e29
"""The log-probability of unreachable states, and the loss above which a sample is impossible."""


of_logits = with_gradient(Tensor.clone, lambda arriving, x: arriving - x.exp() * arriving.sum(-1, keepdim=True))
"""Log-probabilities with PyTorch's gradient: that of the logits they were computed from."""


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
) -> Tensor:
    """Return the loss of log-probabilities [t, n, c] or [t, c] with labels [n, s] or concatenated."""
    if log_probs.ndim == 2:
        log_probs, is_single = log_probs.unsqueeze(1), True
        targets = targets.reshape(1, -1)
    else:
        is_single = False
    device = log_probs.device
    steps, of_labels = (lengths.reshape(-1, 1) for lengths in (input_lengths, target_lengths))
    labels = targets if targets.ndim > 1 else _by_sample(targets, of_labels)
    is_label = torch.arange(labels.shape[1], device=device) < of_labels
    labels = torch.where(is_label, labels, blank).long()
    ends = 2 * of_labels
    reached = _reached(of_logits(log_probs), labels, steps, blank)
    places = torch.arange(reached.shape[1], device=device)
    at_end = (places == ends) | (places == ends - 1)
    losses = -torch.where(at_end, reached, NEVER).logsumexp(1)
    losses = torch.where(losses > IMPOSSIBLE, 0, losses) if zero_infinity else losses * _infinite(losses)
    if reduction == "mean":
        return (losses / of_labels.reshape(-1).clamp_min(1)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses[0] if is_single else losses


def _by_sample(targets: Tensor, of_labels: Tensor) -> Tensor:
    """Return concatenated labels as [n, s]."""
    places = torch.arange(targets.shape[0], device=targets.device)
    starts = of_labels.cumsum(0) - of_labels
    return targets[(starts + places).clamp_max(targets.shape[0] - 1)]


def _reached(log_probs: Tensor, labels: Tensor, steps: Tensor, blank: int) -> Tensor:
    """Return the log-probabilities of all states [n, 2 s + 1] after each sample's steps."""
    count, extent = labels.shape[0], 2 * labels.shape[1] + 1
    states = F.pad(torch.stack([torch.full_like(labels, blank), labels], 2).reshape(count, -1), (0, 1), value=blank)
    before = F.pad(states, (2, 0), value=blank)[:, :extent]
    skipping = torch.where(states != before, 0.0, NEVER).to(log_probs.dtype)
    of_states = log_probs.gather(2, states.expand(log_probs.shape[0], count, extent)).clamp_min(NEVER)
    reached = F.pad(log_probs.new_zeros(count, 1), (0, extent - 1), value=NEVER)
    for step, arriving in enumerate(of_states.unbind()):
        ways = F.pad(reached, (2, 0), value=NEVER)
        ways = torch.stack([ways[:, 2:], ways[:, 1:-1], ways[:, :-2] + skipping]).logsumexp(0)
        reached = torch.where(step < steps, ways + arriving, reached)
    return reached


def _infinite(losses: Tensor) -> Tensor:
    """Return a factor that makes impossible losses infinite and their gradients undefined."""
    return torch.where(losses.detach() > IMPOSSIBLE, inf, 1.0).to(losses.dtype)


def called_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the CTC loss through an operator, since an export cannot trace PyTorch's, which reads the lengths."""
    lengths = map(torch.as_tensor, (input_lengths, target_lengths))
    result: Tensor = torch.ops.planner.ctc_loss(log_probs, targets, *lengths, blank, reduction, zero_infinity)
    return result


LIBRARY = define({
    (
        "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
        "str reduction, bool zero_infinity) -> Tensor"
    ): F.ctc_loss,
})  # fmt: skip
LIBRARY.impl("ctc_loss", lambda x, *how: x.new_empty(x.shape[1:-1] if how[4] == "none" else ()), "Meta")
