"""Normalization: over all dimensions but the second (batch norm), and over any (layer, group, instance norm)."""

from __future__ import annotations

from types import ModuleType

from executor.kernels.blocks import add_up, blocks
from executor.kernels.call import Array, Kernel, KernelCall, named
from executor.kernels.elementwise import spread


def _channels(vector: Array, like: Array) -> Array:
    """View a vector over the channels so that it broadcasts against `like`."""
    return vector.reshape((1, -1) + (1,) * (like.ndim - 2))


def _inverse_deviation(xp: ModuleType, variance: Array, epsilon: float) -> Array:
    """1 / sqrt(variance + epsilon) per channel."""
    return 1 / xp.sqrt(variance + epsilon)


def batch_norm_var(call: KernelCall) -> None:
    """Sum of squared deviations from `mean` per channel, over the whole tensor's `count`."""
    xp, (x, mean), (out,) = call.xp, call.inputs, call.outputs
    total = xp.zeros_like(out)
    for part, centre, each in blocks(xp, x, _channels(mean, x), _channels(total, x)):
        deviation = part - centre
        xp.multiply(deviation, deviation, out=deviation)
        add_up(xp, deviation, each)
    xp.divide(total, call.number("count"), out=out)


def batch_norm(call: KernelCall) -> None:
    """Compute (x - mean) / sqrt(var + eps) * weight + bias."""
    xp, (x, mean, variance, weight, bias), (out,) = call.xp, call.inputs, call.outputs
    factor = _inverse_deviation(xp, variance, call.number("eps")) * weight
    per_channel = (_channels(vector, x) for vector in (mean, factor, bias))
    for result, part, centre, scale, offset in blocks(xp, out, x, *per_channel):
        xp.subtract(part, centre, out=result)
        xp.multiply(result, scale, out=result)
        xp.add(result, offset, out=result)


def batch_norm_backward_reduce(call: KernelCall) -> None:
    """Gradients of weight and bias: sums of grad * normalized x and of grad."""
    xp, (grad, x, mean, variance), (grad_weight, grad_bias) = call.xp, call.inputs, call.outputs
    products, sums = xp.zeros_like(grad_weight), xp.zeros_like(grad_bias)
    per_channel = (_channels(vector, x) for vector in (mean, products, sums))
    for part, slope, centre, product, each in blocks(xp, x, grad, *per_channel):
        deviation = part - centre
        xp.multiply(deviation, slope, out=deviation)
        add_up(xp, deviation, product)
        add_up(xp, slope, each)
    xp.multiply(products, _inverse_deviation(xp, variance, call.number("eps")), out=grad_weight)
    xp.copyto(grad_bias, sums)


def batch_norm_backward(call: KernelCall) -> None:
    """Gradient of the input, through the mean and the variance as well."""
    xp, (grad, x, mean, variance, weight, grad_weight, grad_bias), (out,) = call.xp, call.inputs, call.outputs
    inverse, count = _inverse_deviation(xp, variance, call.number("eps")), call.number("count")
    vectors = (mean, inverse * grad_weight / count, grad_bias / count, inverse * weight)
    for result, slope, part, centre, through_variance, through_mean, scale in blocks(
        xp, out, grad, x, *(_channels(vector, x) for vector in vectors)
    ):
        through_statistics = part - centre
        xp.multiply(through_statistics, through_variance, out=through_statistics)
        xp.add(through_statistics, through_mean, out=through_statistics)
        xp.subtract(slope, through_statistics, out=result)
        xp.multiply(result, scale, out=result)


def _spread(call: KernelCall, operand: int, dims: str) -> Array:
    """View an operand whose dimensions are the dimensions `dims` (an attribute) of x so that it broadcasts."""
    rank = max(array.ndim for array in call.inputs)
    return spread(call.inputs[operand], call.integers(dims), rank)


def _normal(call: KernelCall, first: int) -> Array:
    """(x - mean) / sqrt(var + eps), where x, mean and var are operands number `first` and on; a new array."""
    normal = call.inputs[first] - _spread(call, first + 1, "statistics")
    normal *= _inverse_deviation(call.xp, _spread(call, first + 2, "statistics"), call.number("eps"))
    return normal


def normalize(call: KernelCall) -> None:
    """Compute (x - mean) / sqrt(var + eps) * weight + bias."""
    normal = _normal(call, 0)
    normal *= _spread(call, 3, "weights")
    call.xp.add(normal, _spread(call, 4, "weights"), out=call.outputs[0])


def _summed(call: KernelCall, array: Array, dims: str) -> Array:
    """Sum an array over all but the dimensions `dims` (an attribute), put in that order; a new array."""
    kept = call.integers(dims)
    summed = array.sum(axis=tuple(dim for dim in range(array.ndim) if dim not in kept))
    return summed.transpose([sorted(kept).index(dim) for dim in kept])


def _write(call: KernelCall, *results: Array) -> None:
    for out, result in zip(call.outputs, results, strict=True):
        call.xp.copyto(out, result)


def normalize_backward_weights(call: KernelCall) -> None:
    """Gradients of weight and bias: sums of grad * normalized x and of grad."""
    grad, normal = call.inputs[0], _normal(call, 1)
    normal *= grad
    _write(call, _summed(call, normal, "weights"), _summed(call, grad, "weights"))


def normalize_backward_statistics(call: KernelCall) -> None:
    """Sum grad * weight * normalized x, and grad * weight, for each mean and variance."""
    weighted = call.inputs[0] * _spread(call, 4, "weights")
    _write(call, _summed(call, weighted * _normal(call, 1), "statistics"), _summed(call, weighted, "statistics"))


def normalize_backward(call: KernelCall) -> None:
    """Gradient of the input, through the mean and the variance as well."""
    count, inverse = call.number("count"), _spread(call, 3, "statistics")
    inverse = _inverse_deviation(call.xp, inverse, call.number("eps"))
    through = _normal(call, 1)
    through *= _spread(call, 5, "statistics") / count
    through += _spread(call, 6, "statistics") / count
    weighted = call.inputs[0] * _spread(call, 4, "weights")
    weighted -= through
    call.xp.multiply(weighted, inverse, out=call.outputs[0])


def mean_square(call: KernelCall) -> None:
    """Sum of squares of this run's part of every row, over the whole row's `count`."""
    (x,), (out,) = call.inputs, call.outputs
    call.xp.divide((x * x).sum(axis=-1), call.number("count"), out=out)


def _by_root(call: KernelCall, x: Array, square: Array) -> Array:
    """X / sqrt(square + eps), a new array."""
    return x * _inverse_deviation(call.xp, square, call.number("eps"))[..., None]


def rms_norm(call: KernelCall) -> None:
    """Compute x / sqrt(square + eps) * weight."""
    x, square, weight = call.inputs
    call.xp.multiply(_by_root(call, x, square), weight, out=call.outputs[0])


def rms_norm_backward_weight(call: KernelCall) -> None:
    """Gradient of the weight: sums of grad * normalized x."""
    grad, x, square = call.inputs
    products = grad * _by_root(call, x, square)
    call.xp.sum(products.reshape(-1, products.shape[-1]), axis=0, out=call.outputs[0])


def rms_norm_backward_sum(call: KernelCall) -> None:
    """Sum grad * weight * x for every row."""
    grad, x, weight = call.inputs
    call.xp.sum(grad * weight * x, axis=-1, out=call.outputs[0])


def rms_norm_backward(call: KernelCall) -> None:
    """Gradient of the input, through the mean of squares as well."""
    grad, x, square, weight, inner = call.inputs
    inverse = _inverse_deviation(call.xp, square, call.number("eps"))
    through = x * (inverse * inverse * inner / call.number("count"))[..., None]
    call.xp.multiply(grad * weight - through, inverse[..., None], out=call.outputs[0])


KERNELS: dict[str, Kernel] = {
    **named(batch_norm_var, batch_norm, batch_norm_backward_reduce, batch_norm_backward),
    **named(normalize, normalize_backward_weights, normalize_backward_statistics, normalize_backward),
    **named(mean_square, rms_norm, rms_norm_backward_weight, rms_norm_backward_sum, rms_norm_backward),
}
