"""Embedding bags: sum, mean or maximum of their rows."""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's

from __future__ import annotations

from math import inf
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from planner.pytorch.translate.call import refuse_if


def bags(x: Tensor, weight: Tensor, offsets: Tensor | None = None, *settings: Any, **named: Any) -> Tensor:
    """Return the sum, mean or maximum of the rows of bags of equal length; PyTorch handles other bags."""
    given = {**dict(zip(BAG_SETTINGS, settings, strict=False)), **named}
    if x.ndim != PAIR or any(given.get(name) for name in ("max_norm", "scale_grad_by_freq")):
        return F.embedding_bag(x, weight, offsets, **given)
    mode, shares, left_out = given.get("mode", "mean"), given.get("per_sample_weights"), given.get("padding_idx")
    rows = F.embedding(x, weight)
    rows = rows if shares is None else rows * shares[..., None]
    counts: Any = x.shape[1]
    if left_out is not None:
        inside = (x != left_out % len(weight))[..., None]
        rows, counts = rows.where(inside, -inf if mode == "max" else 0), inside.sum(1)
    if mode == "max":
        greatest = rows.gather(1, rows.detach().argmax(1, keepdim=True)).squeeze(1)
        return greatest if left_out is None else greatest.masked_fill(counts == 0, 0)
    result = rows.sum(1)
    return result if mode == "sum" else result / (counts if left_out is None else counts.clamp(min=1))


PAIR = 2


BAG_SETTINGS = (
    "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset",
    "padding_idx",
)  # fmt: skip
"""Further arguments of the functions of bags, in order."""


def flat_bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, ...]:
    """Return the sum, mean or maximum of the rows of each bag, which begins at its offset.

    The further results are unused.
    """
    refuse_if(scale_grad_by_freq, "bags have no gradients by frequency")
    starts = offsets[:-1] if include_last_offset else offsets
    bag = torch.searchsorted(starts, torch.arange(len(indices)), right=True) - 1
    read = torch.ones_like(bag) if padding_idx is None else (indices != padding_idx % len(weight)).long()
    rows, counts = weight[indices], torch.zeros_like(starts).index_add(0, bag, read)[:, None]
    if mode == 2:
        inside = (bag == torch.arange(len(starts))[:, None]) & (read > 0)
        reached = torch.where(inside[..., None], rows, -inf)
        result = reached.gather(1, reached.detach().argmax(1, keepdim=True)).squeeze(1).masked_fill(counts == 0, 0)
    else:
        shares = read.to(weight.dtype) if per_sample_weights is None else read * per_sample_weights
        result = weight.new_zeros(len(starts), weight.shape[1]).index_add(0, bag, rows * shares[:, None])
        result = result / counts.clamp(min=1) if mode else result
    return result, bag, bag, bag
