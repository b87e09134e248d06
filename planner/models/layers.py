"""Layers that several models share, built from catalog operators."""

from __future__ import annotations

import math

from planner.graph.build import ONES, ZEROS, GraphBuilder
from planner.graph.ir import Init

EPSILON = 1e-5
RELU_GAIN = math.sqrt(2.0)
"""Keeps activations' variance where a relu follows (it drops half of it)."""


def uniform(fan_in: int, gain: float = 1.0) -> Init:
    """Return uniform values of variance gain^2 / fan_in, which keeps an activation's variance times gain^2."""
    return Init("uniform", gain * math.sqrt(3.0 / fan_in))


def linear(b: GraphBuilder, x: str, width: int, name: str, gain: float = 1.0) -> str:
    """Bias-free fully connected layer of x [n, i] to [n, width]; its weight "name.w" is [i, width]."""
    fan_in = b.shape(x)[1]
    weight = b.weight(f"{name}.w", (fan_in, width), uniform(fan_in, gain))
    return b.apply("mm", x, weight, name=name)


def convolution(b: GraphBuilder, x: str, name: str, size: tuple[int, int, int], gain: float = RELU_GAIN) -> str:
    """Bias-free convolution of x [n, c, y, x]; `size` is (output channels, kernel, stride), padding kernel // 2."""
    channels, kernel, stride = size
    fan_in = b.shape(x)[1]
    weight = b.weight(f"{name}.w", (channels, fan_in, kernel, kernel), uniform(fan_in * kernel * kernel, gain))
    pad = kernel // 2
    return b.apply("convolution", x, weight, name=name, stride=(stride, stride), padding=(pad, pad))


def batch_norm(b: GraphBuilder, x: str, name: str) -> str:
    """Batch norm of x [n, c, y, x] from its parts: the statistics are reductions, the normalisation is element-wise."""
    n, channels, height, width = b.shape(x)
    weight = b.weight(f"{name}.w", (channels,), ONES)
    bias = b.weight(f"{name}.b", (channels,), ZEROS)
    count = n * height * width
    mean = b.apply("mean", x, name=f"{name}.mean", dims=(0, 2, 3), count=count)
    var = b.apply("batch_norm_var", x, mean, name=f"{name}.var", count=count)
    return b.apply("batch_norm", x, mean, var, weight, bias, name=name, eps=EPSILON)


def softmax_cross_entropy(b: GraphBuilder, logits: str, labels: str, name: str, count: int) -> str:
    """Softmax cross entropy of logits [n, c] against int32 labels [n], summed over the batch and divided by `count`."""
    maximum = b.apply("amax", logits, name=f"{name}.maximum", dims=(1,))
    total = b.apply("sum_exp", logits, maximum, name=f"{name}.total")
    return b.apply("cross_entropy", logits, maximum, total, labels, name=name, count=count)


def classify(b: GraphBuilder, logits: str) -> dict[str, str]:
    """End a classifier in labels and loss; return the metrics."""
    batch, classes = b.shape(logits)
    labels = b.labels("labels", batch, classes)
    loss = softmax_cross_entropy(b, logits, labels, "loss", batch)
    return {"loss": loss, "logits": logits, "labels": labels}


def pooled_classifier(b: GraphBuilder, x: str, classes: int) -> dict[str, str]:
    """Global average pool of x [n, c, y, x], a fully connected layer without bias, and the loss; return the metrics."""
    _, _, height, width = b.shape(x)
    pooled = b.apply("mean", x, name="pool", dims=(2, 3), count=height * width)
    return classify(b, linear(b, pooled, classes, "fc"))
