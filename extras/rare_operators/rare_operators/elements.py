"""Rarely used elementwise functions, with PyTorch's gradients at bounds and poles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, isnan, nan, pi, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.pytorch.translate.call import refuse_if
from planner.pytorch.translate.compositions import with_gradient


def with_slope(function: Callable[..., Tensor], slope: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an element-wise function whose gradient is the arriving one times a given slope."""
    return with_gradient(function, lambda arriving, *given: arriving * slope(*given))


def _fmax(x: Tensor, other: Tensor, *, sign: int = 1) -> Tensor:
    """Return the larger (or, with `sign` -1, the smaller) of two numbers, ignoring NaN."""
    return torch.where((sign * x >= sign * other) | other.isnan(), x, other)


def _rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: object = None
) -> Tensor:
    slopes = torch.rand_like(x) * (upper - lower) + lower if training else (lower + upper) / 2
    return torch.where(x > 0, x, x * slopes)


def _angle(x: Tensor) -> Tensor:
    """Return the angles of real numbers: 0, or pi if negative."""
    refuse_if(not x.is_floating_point(), "angle of integers: cast them to floating point")
    return torch.where(x.isnan(), x, (x < 0).to(x.dtype) * pi)


def _sinc(x: Tensor) -> Tensor:
    angle = pi * torch.where(x == 0, 1, x)
    return torch.where(x == 0, 1, angle.sin() / angle)


def _alpha_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Replace dropped elements by SELU's limit, and keep the mean and the deviation (Klambauer and others)."""
    if not train or p in (0, 1):
        return x * 0 if train and p else x.clone()
    kept = torch.bernoulli(torch.ones_like(x), 1 - p)
    scale = 1 / sqrt((SELU_LIMIT**2 * p + 1) * (1 - p))
    return x * (kept * scale) + (kept - 1) * (SELU_LIMIT * scale) + SELU_LIMIT * scale * p


SELU_LIMIT = 1.7580993408473766
"""The negative of SELU's limit at minus infinity."""


def _entr(x: Tensor) -> Tensor:
    return torch.where(x > 0, -x * x.log(), torch.where(x < 0, -inf, x))


def _log_ndtr(x: Tensor) -> Tensor:
    """Return the logarithm of the normal distribution function; below 1, by the scaled complement."""
    below, scaled = x < 1, x * sqrt(0.5)
    low, high = torch.where(below, scaled, 0), torch.where(below, 0, scaled)
    return torch.where(below, (torch.special.erfcx(-low) / 2).log() - low * low, torch.log1p(-high.erfc() / 2))


def _slope_of_log_ndtr(x: Tensor) -> Tensor:
    return (-_log_ndtr(x) - x * x / 2).exp() / sqrt(2 * pi)


def _times_log(log: Callable[[Tensor], Tensor], pole: float) -> Callable[..., Tensor]:
    """Return a function for x log(y); `pole` is the y at which the logarithm diverges.

    The result is 0 where x is 0, even if log(y) is undefined.
    """
    written = with_gradient(
        lambda x, y: torch.where(y.ne(y), nan, torch.where(x == 0, 0, x * log(y))),
        lambda arriving, x, y: torch.where((x == 0) & (y <= pole), 0, arriving * log(y)),
        lambda arriving, x, y: arriving * (x / (y - pole)),
    )

    def of_both(x: Any, y: Any) -> Tensor:
        refuse_if(isinstance(y, float) and isnan(y), "its factor is NaN")
        dtype = torch.result_type(x, y)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        both = (torch.as_tensor(operand, dtype=dtype) for operand in (x, y))
        return written(*torch.broadcast_tensors(*both))  # type: ignore[no-untyped-call]

    return of_both


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Return the logit of a tensor, clamped to [eps, 1 - eps] if `eps` is given; NaN outside [0, 1]."""
    x = x if eps is None else x.clamp(eps, 1 - eps)
    x = x * torch.where((x >= 0) & (x <= 1), 1.0, nan)
    return x.log() - (1 - x).log()


def _gradient_of_logit(arriving: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    low, outside = (0.0, nan) if eps is None else (eps, 0.0)
    gradient = arriving * torch.where(x == 0, inf, 1 / (x * (1 - x)))
    return torch.where((x >= low) & (x <= 1 - low), gradient, outside)


def _celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0) / alpha), x)


def _slope_of_celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return PyTorch's slope, which uses `alpha` in single precision."""
    scale = 1 / float(np.float32(alpha))
    return torch.where(x <= 0, alpha * scale * torch.exp(x.clamp(max=0) * scale), 1)


ELEMENTS: Mapping[str, Callable[..., Any]] = {
    "alpha_dropout": _alpha_dropout,
    "angle": with_gradient(_angle, lambda _, x: torch.zeros_like(x)),
    "celu": with_slope(_celu, _slope_of_celu),
    "exp2": lambda x: torch.pow(2.0, x),
    "fmax": _fmax,
    "fmin": partial(_fmax, sign=-1),
    "logit": with_gradient(_logit, _gradient_of_logit),
    "rrelu": _rrelu,
    "sinc": _sinc,
    "softshrink": lambda x, lambd=0.5: torch.where((x >= -lambd) & (x <= lambd), 0, x - x.sign() * lambd),
    "special_entr": with_slope(_entr, lambda x: -(1 + x.log())),
    "special_log_ndtr": with_slope(_log_ndtr, _slope_of_log_ndtr),
    "special_xlog1py": _times_log(torch.log1p, -1.0),
    "xlogy": _times_log(torch.log, 0.0),
}
"""Functions by operator name."""
