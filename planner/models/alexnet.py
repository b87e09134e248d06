"""AlexNet as trained on one device: five convolutions and three fully connected layers, all with biases.

Channels are those of Krizhevsky's "One weird trick for parallelizing convolutional neural networks"; as in today's
implementations there is no response normalization. There is no dropout.
"""

from __future__ import annotations

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.layers import RELU_GAIN, add_bias, classify, convolution, flatten, linear, max_pool
from planner.models.options import Scaled, scaled

CONVOLUTIONS = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
"""Output channels, kernel, stride, padding."""

POOLED = (1, 2, 5)
"""The convolutions that a 3x3 max pool of stride 2 follows."""

HIDDEN = 4096


def build(options: Scaled) -> Graph:
    """Return the training graph of AlexNet, every width but the classes' times `options.width`; images from 63 pixels.

    Raises GraphError for smaller images, and where a scaled width is no integer.
    """
    b = GraphBuilder(options.dtype)
    size = options.image
    x = b.input("images", (options.samples, options.channels, size, size))
    for layer, (channels, *window) in enumerate(CONVOLUTIONS, start=1):
        x = convolution(b, x, f"conv{layer}", (scaled(channels, options.width), *window))
        x = b.apply("relu", add_bias(b, x, f"conv{layer}", 1), name=f"relu{layer}")
        if layer in POOLED:
            x = max_pool(b, x, f"pool{layer}", 3)
    metrics = classify(b, classifier(b, flatten(b, x, "flat"), scaled(HIDDEN, options.width), options))
    return options.train(b, metrics)


def classifier(b: GraphBuilder, x: str, hidden: int, options: Scaled) -> str:
    """Add three fully connected layers with biases, relu between; return the logits of x [n, features]."""
    for layer in (1, 2):
        x = add_bias(b, linear(b, x, hidden, f"fc{layer}", gain=RELU_GAIN), f"fc{layer}", 1)
        x = b.apply("relu", x, name=f"fc{layer}.relu")
    return add_bias(b, linear(b, x, options.classes, "fc3"), "fc3", 1)
