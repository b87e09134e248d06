"""Functions that an export cannot trace: their result has an unknown extent, is sparse, or depends on data.

And one that changes running statistics.
"""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log, pi
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def _counted(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count integers below `minlength`, or add up their weights; a larger one fails at run time."""
    if not minlength or not x.numel():
        return torch.bincount(x, weights, minlength)
    amounts = torch.ones_like(x) if weights is None else weights
    length = torch.repeat_interleave((x.max() + 1).clamp(min=minlength)[None], output_size=minlength)
    return length.to(amounts.dtype).index_add(0, x, amounts)


def _dense(indices: Tensor, values: Tensor, size: Sequence[int] | None = None, **settings: Any) -> Tensor:
    """Return a sparse tensor as a dense one."""
    if size is None or not isinstance(indices, Tensor) or not isinstance(values, Tensor):
        return torch.sparse_coo_tensor(indices, values, size, **settings)
    dense = torch.zeros(*size, *values.shape[1:], dtype=settings.get("dtype") or values.dtype, device=values.device)
    return dense.index_put(tuple(indices.unbind()), values.to(dense.dtype), accumulate=True)


def _covariance(x: Tensor, *, correction: int = 1, **weights: Any) -> Tensor:
    """Return the covariance matrix of rows."""
    if any(weight is not None for weight in weights.values()) or x.is_complex():
        return torch.cov(x, correction=correction, **weights)
    rows = x[None] if x.ndim < 2 else x
    deviations = rows - rows.mean(1, keepdim=True)
    return (deviations @ deviations.T / max(rows.shape[1] - correction, 0)).squeeze()


def _correlation(x: Tensor) -> Tensor:
    """Return the correlation matrix of rows."""
    products = _covariance(x)
    if not products.ndim:
        return products / products
    sizes = products.diag().sqrt()
    return (products / sizes[:, None] / sizes).clip(-1, 1)


def _gaussian_loss(
    x: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Return the negative log-likelihood of a normal distribution; PyTorch's reads data to check the variance."""
    var = torch.as_tensor(var, dtype=x.dtype, device=x.device)
    var = var[..., None] if var.shape == x.shape[:-1] else var
    var = var + (var.detach().clamp(min=eps) - var.detach())
    loss: Tensor = (var.log() + (x - target).square() / var) / 2 + (log(2 * pi) / 2 if full else 0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _instance_norm(x: Tensor, running_mean: Any = None, running_var: Any = None, **settings: Any) -> Tensor:
    """Normalize by sample; running statistics track the mean over samples."""
    if running_mean is None or not settings.get("use_input_stats", True):
        return F.instance_norm(x, running_mean, running_var, **settings)
    result = F.instance_norm(x, **settings)
    momentum, dims, x = settings.get("momentum", 0.1), list(range(2, x.ndim)), x.detach()
    for kept, now in ((running_mean, x.mean(dims)), (running_var, x.var(dims))):
        kept.mul_(1 - momentum).add_(now.mean(0), alpha=momentum)
    return result


STATISTICS: Mapping[Any, Callable[..., Any]] = {
    torch.bincount: _counted,
    torch.Tensor.bincount: _counted,
    F.gaussian_nll_loss: _gaussian_loss,
    F.instance_norm: _instance_norm,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _correlation),
    torch.sparse_coo_tensor: _dense,
    torch.sparse.mm: torch.mm,
    torch.Tensor.coalesce: lambda x: x if x.layout is torch.strided else x.coalesce(),
}
"""Replacements by function."""
