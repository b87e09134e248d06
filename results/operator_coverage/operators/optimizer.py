"""MXNet's update rules: the gradient is rescaled, clipped, and decayed weights are added to it."""

from __future__ import annotations

from tdl.catalog.elementwise import pointwise
from tdl.expr import Expr
from tdl.language import maximum, minimum, sqrt


def _clipped(x: Expr, bound: float) -> Expr:
    """Clip to [-bound, bound]; a negative bound clips nothing."""
    return x if bound < 0 else maximum(minimum(x, bound), -bound)


@pointwise
def sgd_update(w: Expr, grad: Expr, *, lr: float, wd: float = 0.0, rescale: float = 1.0, clip: float = -1.0) -> Expr:
    return (1 - lr * wd) * w - lr * _clipped(rescale * grad, clip)


@pointwise
def sgd_momentum_update(
    w: Expr,
    grad: Expr,
    moved: Expr,
    *,
    lr: float,
    momentum: float,
    wd: float = 0.0,
    rescale: float = 1.0,
    clip: float = -1.0,
) -> tuple[Expr, Expr]:
    step = momentum * moved - lr * wd * w - lr * _clipped(rescale * grad, clip)
    return w + step, step


@pointwise
def adam_update(
    w: Expr, grad: Expr, m: Expr, v: Expr, *, lr: float, beta1: float, beta2: float, eps: float,
    wd: float = 0.0, rescale: float = 1.0, clip: float = -1.0,
) -> tuple[Expr, Expr, Expr]:  # fmt: skip
    """Adam without bias correction, which the caller folds into lr."""
    g = _clipped(rescale * grad + wd * w, clip)
    mean, square = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return w - lr * mean / (sqrt(square) + eps), mean, square


@pointwise
def rmsprop_update(
    w: Expr, grad: Expr, n: Expr, *, lr: float, decay: float, eps: float,
    wd: float = 0.0, rescale: float = 1.0, clip: float = -1.0,
) -> tuple[Expr, Expr]:  # fmt: skip
    g = _clipped(rescale * grad + wd * w, clip)
    square = (1 - decay) * g * g + decay * n
    return w - lr * g / sqrt(square + eps), square


@pointwise
def rmsprop_centered_update(
    w: Expr, grad: Expr, n: Expr, mean: Expr, delta: Expr, *, lr: float, decay: float, momentum: float, eps: float,
    wd: float = 0.0, rescale: float = 1.0, clip: float = -1.0,
) -> tuple[Expr, Expr, Expr, Expr]:  # fmt: skip
    """RMSProp after Graves: centred second moment, and momentum."""
    g = _clipped(rescale * grad + wd * w, clip)
    square, first = (1 - decay) * g * g + decay * n, (1 - decay) * g + decay * mean
    step = momentum * delta - lr * g / sqrt(square - first * first + eps)
    return w + step, square, first, step
