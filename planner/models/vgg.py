"""VGG-16: configuration D of Simonyan and Zisserman, its convolutions without biases; no dropout."""

from __future__ import annotations

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.alexnet import HIDDEN, classifier
from planner.models.layers import classify, convolution, flatten, max_pool
from planner.models.options import Scaled, scaled

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels, and how many 3x3 convolutions of stride 1; a 2x2 max pool of stride 2 ends each stage."""


def build(options: Scaled) -> Graph:
    """Return the training graph of VGG-16, every width but the classes' times `options.width`; images from 32 pixels.

    Raises GraphError for smaller images, and where a scaled width is no integer.
    """
    b = GraphBuilder(options.dtype)
    size = options.image
    x = b.input("images", (options.samples, options.channels, size, size))
    for stage, (channels, count) in enumerate(STAGES, start=1):
        for layer in range(1, count + 1):
            x = convolution(b, x, f"conv{stage}_{layer}", (scaled(channels, options.width), 3, 1))
            x = b.apply("relu", x, name=f"relu{stage}_{layer}")
        x = max_pool(b, x, f"pool{stage}", 2)
    metrics = classify(b, classifier(b, flatten(b, x, "flat"), scaled(HIDDEN, options.width), options))
    return options.train(b, metrics)
