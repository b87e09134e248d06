"""Batch normalization over all dimensions but the second (the channels), its statistics and gradients."""

from __future__ import annotations

from types import ModuleType

from executor.kernels.call import Array, Kernel, KernelCall


def _channels(vector: Array, like: Array) -> Array:
    """View a vector over the channels so that it broadcasts against `like`."""
    return vector.reshape((1, -1) + (1,) * (like.ndim - 2))


def _all_but_channels(x: Array) -> tuple[int, ...]:
    """Axes that the statistics are taken over."""
    return (0, *range(2, x.ndim))


def _inverse_deviation(xp: ModuleType, variance: Array, epsilon: float) -> Array:
    """1 / sqrt(variance + epsilon) per channel."""
    return 1 / xp.sqrt(variance + epsilon)


def batch_norm_var(call: KernelCall) -> None:
    """Sum of squared deviations from `mean` per channel, over the whole tensor's `count`."""
    xp, (x, mean), (out,) = call.xp, call.inputs, call.outputs
    deviation = x - _channels(mean, x)
    xp.multiply(deviation, deviation, out=deviation)
    xp.sum(deviation, axis=_all_but_channels(x), out=out)
    xp.divide(out, call.number("count"), out=out)


def batch_norm(call: KernelCall) -> None:
    """Compute (x - mean) / sqrt(var + eps) * weight + bias."""
    xp, (x, mean, variance, weight, bias), (out,) = call.xp, call.inputs, call.outputs
    factor = _inverse_deviation(xp, variance, call.number("eps")) * weight
    xp.subtract(x, _channels(mean, x), out=out)
    xp.multiply(out, _channels(factor, x), out=out)
    xp.add(out, _channels(bias, x), out=out)


def batch_norm_backward_reduce(call: KernelCall) -> None:
    """Gradients of weight and bias: sums of grad * normalized x and of grad."""
    xp, (grad, x, mean, variance), (grad_weight, grad_bias) = call.xp, call.inputs, call.outputs
    product = x - _channels(mean, x)
    xp.multiply(product, grad, out=product)
    xp.sum(product, axis=_all_but_channels(x), out=grad_weight)
    xp.multiply(grad_weight, _inverse_deviation(xp, variance, call.number("eps")), out=grad_weight)
    xp.sum(grad, axis=_all_but_channels(x), out=grad_bias)


def batch_norm_backward(call: KernelCall) -> None:
    """Gradient of the input, through the mean and the variance as well."""
    xp, (grad, x, mean, variance, weight, grad_weight, grad_bias), (out,) = call.xp, call.inputs, call.outputs
    inverse, count = _inverse_deviation(xp, variance, call.number("eps")), call.number("count")
    through_statistics = x - _channels(mean, x)
    xp.multiply(through_statistics, _channels(inverse * grad_weight / count, x), out=through_statistics)
    xp.add(through_statistics, _channels(grad_bias / count, x), out=through_statistics)
    xp.subtract(grad, through_statistics, out=out)
    xp.multiply(out, _channels(inverse * weight, x), out=out)


KERNELS: dict[str, Kernel] = {
    "batch_norm_var": batch_norm_var,
    "batch_norm": batch_norm,
    "batch_norm_backward_reduce": batch_norm_backward_reduce,
    "batch_norm_backward": batch_norm_backward,
}
