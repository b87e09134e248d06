"""Functions of elements, and of rows of them, with the gradients that PyTorch has of them at bounds, ties and poles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isnan, nan, pi, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.pytorch.translate.call import refuse_if
from planner.pytorch.translate.gradient_overrides import with_gradient, with_slope


def _sinc(x: Tensor) -> Tensor:
    angle = pi * torch.where(x == 0, 1, x)
    return torch.where(x == 0, 1, angle.sin() / angle)


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Return the logit of a tensor, clamped to [eps, 1 - eps] if there is one; no number outside [0, 1]."""
    x = x if eps is None else x.clamp(eps, 1 - eps)
    x = x * torch.where((x >= 0) & (x <= 1), 1.0, nan)
    return x.log() - (1 - x).log()


def _gradient_of_logit(arriving: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    low, outside = (0.0, nan) if eps is None else (eps, 0.0)
    gradient = arriving * torch.where(x == 0, inf, 1 / (x * (1 - x)))
    return torch.where((x >= low) & (x <= 1 - low), gradient, outside)


def _clamp(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Bound by tensors; at a tie the gradient is all the element's."""
    bounded = {(True, True): _clamp_both, (True, False): _clamp_min, (False, True): _clamp_max}
    bounds = [torch.as_tensor(bound, dtype=x.dtype) for bound in (low, high) if bound is not None]
    operands = torch.broadcast_tensors(x, *bounds)  # type: ignore[no-untyped-call]
    return bounded[low is not None, high is not None](*operands)


_clamp_min = with_gradient(
    torch.maximum,
    lambda arriving, x, low: torch.where(x >= low, arriving, 0),
    lambda arriving, x, low: torch.where(x < low, arriving, 0),
)
_clamp_max = with_gradient(
    torch.minimum,
    lambda arriving, x, high: torch.where(x <= high, arriving, 0),
    lambda arriving, x, high: torch.where(x > high, arriving, 0),
)
_clamp_both = with_gradient(
    lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    lambda arriving, x, low, high: torch.where((x >= low) & (x <= high), arriving, 0),
    lambda arriving, x, low, high: torch.where((x < low) & (low < high), arriving, 0),
    lambda arriving, x, low, high: torch.where((x > high) | (high < low), arriving, 0),
)


def _celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0) / alpha), x)


def _slope_of_celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return the slope as PyTorch has it, which takes `alpha` in single precision."""
    scale = 1 / float(np.float32(alpha))
    return torch.where(x <= 0, alpha * scale * torch.exp(x.clamp(max=0) * scale), 1)


def _alpha_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Put what SELU tends to in place of elements, and keep mean and deviation (Klambauer and others)."""
    if not train or p in (0, 1):
        return x * 0 if train and p else x.clone()
    kept = torch.bernoulli(torch.ones_like(x), 1 - p)
    scale = 1 / sqrt((SELU_LIMIT**2 * p + 1) * (1 - p))
    return x * (kept * scale) + (kept - 1) * (SELU_LIMIT * scale) + SELU_LIMIT * scale * p


SELU_LIMIT = 1.7580993408473766
"""Minus what SELU tends to."""


def _entr(x: Tensor) -> Tensor:
    return torch.where(x > 0, -x * x.log(), torch.where(x < 0, -inf, x))


def _log_ndtr(x: Tensor) -> Tensor:
    """Return the logarithm of the normal distribution function, of what is below 1 by scaled complements."""
    below, scaled = x < 1, x * sqrt(0.5)
    low, high = torch.where(below, scaled, 0), torch.where(below, 0, scaled)
    return torch.where(below, (torch.special.erfcx(-low) / 2).log() - low * low, torch.log1p(-high.erfc() / 2))


def _slope_of_log_ndtr(x: Tensor) -> Tensor:
    return (-_log_ndtr(x) - x * x / 2).exp() / sqrt(2 * pi)


def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return a softmax that is zero, and so is its gradient, where all are infinitely small."""
    is_hidden = (x == -inf).all(dim, keepdim=True)
    return x.masked_fill(is_hidden, 0).softmax(dim, dtype).masked_fill(is_hidden, 0)


def _times_log(log: Callable[[Tensor], Tensor], pole: float) -> Callable[..., Tensor]:
    """Return x log(y), whose logarithm begins at a pole: zero where x is, though y has no logarithm."""
    written = with_gradient(
        lambda x, y: torch.where(y.ne(y), nan, torch.where(x == 0, 0, x * log(y))),
        lambda arriving, x, y: torch.where((x == 0) & (y <= pole), 0, arriving * log(y)),
        lambda arriving, x, y: arriving * (x / (y - pole)),
    )

    def of_both(x: Any, y: Any) -> Tensor:
        refuse_if(isinstance(y, float) and isnan(y), "its factor is no number")
        dtype = torch.result_type(x, y)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        both = (torch.as_tensor(operand, dtype=dtype) for operand in (x, y))
        return written(*torch.broadcast_tensors(*both))  # type: ignore[no-untyped-call]

    return of_both


def _meshgrid(tensors: Sequence[Tensor], *, indexing: str = "ij") -> list[Tensor]:
    """Return the coordinates of all points of a grid."""
    order = [*range(len(tensors))]
    if indexing == "xy":
        order[:2] = order[1::-1]
    rows = [x.reshape([-1 if dim == at else 1 for dim in order]) for at, x in enumerate(tensors)]
    return torch.broadcast_tensors(*rows)  # type: ignore[no-any-return, no-untyped-call]


WRITTEN_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "_safe_softmax": _safe_softmax,
    "addbmm": lambda x, a, b, *, beta=1, alpha=1: (beta * x if beta else 0) + alpha * (a @ b).sum(0),
    "alpha_dropout": _alpha_dropout,
    "celu": with_slope(_celu, _slope_of_celu),
    "clamp": _clamp,
    "clamp_max": lambda x, max: _clamp(x, high=max),
    "clamp_min": lambda x, min: _clamp(x, low=min),
    "exp2": lambda x: torch.pow(2.0, x),
    "logit": with_gradient(_logit, _gradient_of_logit),
    "meshgrid": _meshgrid,
    "sinc": _sinc,
    "softshrink": lambda x, lambd=0.5: torch.where((x >= -lambd) & (x <= lambd), 0, x - x.sign() * lambd),
    "special_entr": with_slope(_entr, lambda x: -(1 + x.log())),
    "special_log_ndtr": with_slope(_log_ndtr, _slope_of_log_ndtr),
    "special_xlog1py": _times_log(torch.log1p, -1.0),
    "xlogy": _times_log(torch.log, 0.0),
}
"""By the operator's name."""
