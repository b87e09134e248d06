"""Operators that read or write parts of a tensor, written in others: slices, diagonals, places by index; CTC loss."""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's operators

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from planner.pytorch.translate.call import refuse_if
from planner.pytorch.translate.gradient_overrides import with_gradient

NEVER, IMPOSSIBLE = -1e30, 1e29
"""The logarithm of what cannot be reached, and from which loss on nothing can."""

of_logits = with_gradient(Tensor.clone, lambda arriving, x: arriving - x.exp() * arriving.sum(-1, keepdim=True))
"""Log-probabilities whose gradient is, as PyTorch takes it, that of the logits that they were made of."""


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
) -> Tensor:
    """Return the loss of log-probabilities [t, n, c], or [t, c], and labels [n, s], or of all samples in a row."""
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
    """Return labels [n, s] of those of all samples, one behind the other."""
    places = torch.arange(targets.shape[0], device=targets.device)
    starts = of_labels.cumsum(0) - of_labels
    return targets[(starts + places).clamp_max(targets.shape[0] - 1)]


def _reached(log_probs: Tensor, labels: Tensor, steps: Tensor, blank: int) -> Tensor:
    """Return the logarithms of the probabilities of all states [n, 2 s + 1] after a sample's steps."""
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
    """Return what makes losses infinite, and their gradients none, that nothing reaches."""
    return torch.where(losses.detach() > IMPOSSIBLE, inf, 1.0).to(losses.dtype)


aten = torch.ops.aten


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Put the last elements of a dimension before the others."""
    if not dims:
        return _roll(x.flatten(), shifts, (0,)).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        if start := -shift % max(1, x.shape[dim]):
            x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


def _slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Put a range of a dimension between what comes before and after it."""
    first, stop, _ = slice(start, end, step).indices(x.shape[dim])
    if step != 1:
        return _index_put(x, [*[None] * (dim % x.ndim), torch.arange(first, stop, step)], src)
    before, after = x.narrow(dim, 0, first), x.narrow(dim, max(first, stop), x.shape[dim] - max(first, stop))
    return torch.cat([before, src, after], dim)


def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    row = index % x.shape[dim]
    return _slice_scatter(x, src.unsqueeze(dim), dim, row, row + 1)


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Put windows of a dimension side by side in its place, and their elements last."""
    x = x if x.ndim else x[None]
    dim = dimension % x.ndim
    places = torch.arange((x.shape[dim] - size) // step + 1)[:, None] * step + torch.arange(size)
    windows: Tensor = x.index_select(dim, places.flatten()).unflatten(dim, places.shape)  # type: ignore[no-untyped-call]
    return windows.movedim(dim + 1, -1)


def _fill_diagonal(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    rows, columns, *more = x.shape
    refuse_if(more or (wrap and rows > columns), "only one diagonal of a matrix is filled")
    return torch.where(torch.arange(rows)[:, None] == torch.arange(columns), fill_value, x)


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Read a diagonal of matrices, which is every so many elements of their rows behind each other."""
    laid = x.movedim((dim1, dim2), (-2, -1))
    *_, rows, columns = laid.shape
    first = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return laid.flatten(-2)[..., first : first + count * (columns + 1) : columns + 1][..., :count]


def _diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    laid = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = torch.arange(laid.shape[-2]), torch.arange(laid.shape[-1])
    places = (rows + min(0, offset)).clamp(0, src.shape[-1] - 1)
    is_written = rows[:, None] + offset == columns
    return torch.where(is_written, src[..., places][..., None], laid).movedim((-2, -1), (dim1, dim2))


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Combine what is written to each place, with what is there or without; a row of all that may come to it."""
    dim %= max(1, x.ndim)
    extents = zip(x.shape, src.shape, strict=True)
    is_whole = index.shape == src.shape and all(a == b for d, (a, b) in enumerate(extents) if d != dim)
    refuse_if(not is_whole, "only whole rows are scattered")
    places = torch.arange(x.shape[dim]).view(-1, *(1 for _ in range(x.ndim - dim)))
    hits = index.unsqueeze(dim) == places
    count = hits.sum(dim + 1)
    combine, nothing = COMBINED[reduce]
    rows = torch.where(hits, src.unsqueeze(dim), nothing)
    if include_self:
        rows = torch.cat([x.unsqueeze(dim + 1), rows], dim + 1)
    result = combine(rows, dim + 1)
    if reduce == "mean":
        result = result / (count + int(include_self)).clamp(min=1)
    return torch.where(count == 0, x, result)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Write at indices what has a gradient, of which what is overwritten has its share, too."""
    refuse_if(accumulate, "what is added has its gradient")
    places = list(indices)
    written = with_gradient(
        lambda x, values: aten.index_put(x, places, values.detach()),
        lambda arriving, *_: aten.index_put(arriving, places, arriving.new_zeros(())),
        lambda arriving, *_: aten.index(arriving, places),
    )
    return written(x, values.to(x.dtype).expand(aten.index(x, places).shape))


def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Write at indices along a dimension; as `_index_put`."""
    written = with_gradient(
        lambda x, src: x.scatter(dim, index, src.detach()),
        lambda arriving, *_: arriving.scatter(dim, index, 0),
        lambda arriving, *_: arriving.gather(dim, index),
    )
    return written(x, src)


COMBINED: Mapping[str, tuple[Callable[..., Tensor], float]] = {
    "sum": (torch.sum, 0.0),
    "mean": (torch.sum, 0.0),
    "prod": (torch.prod, 1.0),
    "amax": (torch.amax, -inf),
    "amin": (torch.amin, inf),
}
"""How elements are combined by a reduction's name, and what changes nothing."""


WRITTEN_PARTS: Mapping[str, Callable[..., Any]] = {
    "diagonal": _diagonal,
    "diagonal_scatter": _diagonal_scatter,
    "fill_diagonal": _fill_diagonal,
    "index_put": _index_put,
    "roll": _roll,
    "scatter": _scatter,
    "scatter_reduce": _scatter_reduce,
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
    "unfold": _unfold,
}
"""By the operator's name."""
