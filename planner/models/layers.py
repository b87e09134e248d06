"""Layers shared by several models, built from catalog operators."""

from __future__ import annotations

import math

from planner.graph.build import ONES, ZEROS, Average, GraphBuilder
from planner.graph.ir import Init, Value

EPSILON = 1e-5
RELU_GAIN = math.sqrt(2.0)
"""Gain that keeps the variance of activations before a relu, which drops half of it."""


def uniform(fan_in: int, gain: float = 1.0) -> Init:
    """Return a uniform Init of variance gain^2 / fan_in, which keeps an activation's variance times gain^2."""
    return Init("uniform", gain * math.sqrt(3.0 / fan_in))


def linear(b: GraphBuilder, x: str, width: int, name: str, gain: float = 1.0) -> str:
    """Add a bias-free fully connected layer from x [n, i] to [n, width]; its weight "name.w" is [i, width]."""
    fan_in = b.shape(x)[1]
    weight = b.weight(f"{name}.w", (fan_in, width), uniform(fan_in, gain))
    return b.apply("mm", x, weight, name=name)


def convolution(b: GraphBuilder, x: str, name: str, size: tuple[int, ...], gain: float = RELU_GAIN) -> str:
    """Add a bias-free convolution of x [n, c, y, x].

    `size` is (output channels, kernel, stride, padding=kernel // 2).
    """
    channels, kernel, stride, padding = (*size, size[1] // 2)[:4]
    fan_in = b.shape(x)[1]
    weight = b.weight(f"{name}.w", (channels, fan_in, kernel, kernel), uniform(fan_in * kernel * kernel, gain))
    return b.apply("convolution", x, weight, name=name, stride=(stride, stride), padding=(padding, padding))


def batch_norm(b: GraphBuilder, x: str, name: str, running: bool = False) -> str:
    """Add batch norm of x [n, c, y, x] in parts: statistics are reductions, the normalization is element-wise.

    With `running`, states "name.running_mean" and "name.running_var" track the statistics, the variance unbiased.
    """
    n, channels, height, width = b.shape(x)
    weight = b.weight(f"{name}.w", (channels,), ONES)
    bias = b.weight(f"{name}.b", (channels,), ZEROS)
    count = n * height * width
    mean = b.apply("mean", x, name=f"{name}.mean", dims=(0, 2, 3), count=count)
    var = b.apply("batch_norm_var", x, mean, name=f"{name}.var", count=count)
    if running:
        b.averages += [
            Average(f"{name}.running_mean", mean, ZEROS),
            Average(f"{name}.running_var", var, ONES, count / max(1, count - 1)),
        ]
    return b.apply("batch_norm", x, mean, var, weight, bias, name=name, eps=EPSILON)


def add_bias(b: GraphBuilder, x: str, name: str, *dims: int) -> str:
    """Add the weight "name.b", initially zero, whose dimension j is dimension dims[j] of x; the node is "name.bias"."""
    shape = b.shape(x)
    bias = b.weight(f"{name}.b", tuple(shape[dim] for dim in dims), ZEROS)
    return b.apply("add", x, bias, name=f"{name}.bias", dims=dims)


def max_pool(b: GraphBuilder, x: str, name: str, kernel: int, padding: int = 0) -> str:
    """Add max pooling of x [n, c, y, x] over kernel x kernel windows with stride 2; return the values."""
    return b.apply_all(
        "max_pool2d_with_indices",
        x,
        name=name,
        stride=(2, 2),
        padding=(padding, padding),
        kernel=(kernel, kernel),
        extents={"dy": kernel, "dx": kernel},
    )[0]


def flatten(b: GraphBuilder, x: str, name: str) -> str:
    """Merge channels, rows and columns: x [n, c, y, x] to [n, c y x]."""
    _, channels, height, width = b.shape(x)
    source, target = (("n",), ("c",), ("y",), ("x",)), (("n",), ("c", "y", "x"))
    extents: dict[str, Value] = {"c": channels, "y": height, "x": width}
    return b.apply("reshape", x, name=name, source=source, target=target, extents=extents)


def global_pool(b: GraphBuilder, x: str, name: str) -> str:
    """Add the mean over rows and columns: x [n, c, y, x] to [n, c]."""
    _, _, height, width = b.shape(x)
    return b.apply("mean", x, name=name, dims=(2, 3), count=height * width)


def layer_norm(b: GraphBuilder, x: str, name: str) -> str:
    """Add layer norm over the last dimension of x in parts: two reductions and an element-wise normalization."""
    *rest, width = b.shape(x)
    rows, last = tuple(range(len(rest))), (len(rest),)
    weight = b.weight(f"{name}.w", (width,), ONES)
    bias = b.weight(f"{name}.b", (width,), ZEROS)
    mean = b.apply("mean", x, name=f"{name}.mean", dims=last, count=width)
    var = b.apply("var", x, mean, name=f"{name}.var", dims=last, count=width)
    return b.apply("normalize", x, mean, var, weight, bias, name=name, statistics=rows, weights=last, eps=EPSILON)


def rms_norm(b: GraphBuilder, x: str, name: str, eps: float = EPSILON) -> str:
    """Add RMS norm over the last dimension of x: a reduction and an element-wise normalization with weight "name.w"."""
    width = b.shape(x)[-1]
    weight = b.weight(f"{name}.w", (width,), ONES)
    square = b.apply("mean_square", x, name=f"{name}.square", count=width)
    return b.apply("rms_norm", x, square, weight, name=name, eps=eps)


def _row_sums(b: GraphBuilder, x: str, name: str) -> tuple[str, str]:
    """Return the maximum and the sum of exponentials over the last dimension of x."""
    maximum = b.apply("amax", x, name=f"{name}.maximum", dims=(len(b.shape(x)) - 1,))
    return maximum, b.apply("sum_exp", x, maximum, name=f"{name}.total")


def softmax(b: GraphBuilder, x: str, name: str) -> str:
    """Add softmax over the last dimension of x in parts: two reductions and an element-wise quotient."""
    return b.apply("softmax", x, *_row_sums(b, x, name), name=name)


def softmax_cross_entropy(b: GraphBuilder, logits: str, labels: str, name: str, count: int) -> str:
    """Add softmax cross entropy of logits [..., c] and int32 labels [...], summed and divided by `count`.

    It is computed in the weights' dtype: float32 with mixed precision.
    """
    logits = b.cast(logits, b.weight_dtype, f"{name}.logits")
    return b.apply("cross_entropy", logits, *_row_sums(b, logits, name), labels, name=name, count=count)


def classify(b: GraphBuilder, logits: str) -> dict[str, str]:
    """Add the labels [...] and the mean loss of a classifier's logits [..., classes]; return the metrics."""
    *rows, classes = b.shape(logits)
    labels = b.integers("labels", rows, classes)
    loss = softmax_cross_entropy(b, logits, labels, "loss", math.prod(rows))
    return {"loss": loss, "logits": logits, "labels": labels}


def pooled_classifier(b: GraphBuilder, x: str, classes: int) -> dict[str, str]:
    """Add a global average pool of x [n, c, y, x], a fully connected layer without bias, and the loss.

    Return the metrics.
    """
    return classify(b, linear(b, global_pool(b, x, "pool"), classes, "fc"))
