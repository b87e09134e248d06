"""The benchmark's models of May 2017 (github.com/tensorflow/benchmarks, tf_cnn_benchmarks), without dropout."""

from __future__ import annotations

from collections.abc import Sequence

import planner
from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.alexnet import HIDDEN, classifier
from planner.models.layers import add_bias, classify, convolution, flatten, max_pool
from planner.models.options import Scaled
from planner.models.vgg import STAGES

Layer = tuple[int, int, int, int, int]
"""Channels, kernel, stride, padding, and the kernel of the max pool of stride 2 that follows (0: none)."""

ALEXNET: tuple[Layer, ...] = (
    (64, 11, 4, 0, 3),
    (192, 5, 1, 2, 3),
    (384, 3, 1, 1, 0),
    (384, 3, 1, 1, 0),
    (256, 3, 1, 1, 3),
)
VGG_16 = tuple((channels, 3, 1, 1, 2 if at == count else 0) for channels, count in STAGES for at in range(1, count + 1))
PLAIN: dict[str, tuple[Sequence[Layer], int]] = {"AlexNet": (ALEXNET, 227), "VGG-16": (VGG_16, 224)}
RESNETS = {"ResNet-50": "wresnet-50-1", "ResNet-152": "wresnet-152-1"}


def build(name: str, batch: int) -> Graph:
    """Return a model's training graph, with plain gradient descent."""
    if name in RESNETS:
        return planner.model(RESNETS[name], batch=batch, image=224, optimizer="sgd", stride_first=True)
    layers, image = PLAIN[name]
    return plain(layers, Scaled(batch=batch, image=image, optimizer="sgd"))


def plain(layers: Sequence[Layer], options: Scaled) -> Graph:
    """Return the training graph of convolutions with biases, one after the other, and three fully connected layers."""
    b = GraphBuilder(options.dtype)
    x = b.input("images", (options.batch, options.channels, options.image, options.image))
    for number, (channels, kernel, stride, padding, pool) in enumerate(layers, start=1):
        x = convolution(b, x, f"conv{number}", (channels, kernel, stride, padding))
        x = b.apply("relu", add_bias(b, x, f"conv{number}", 1), name=f"relu{number}")
        if pool:
            x = max_pool(b, x, f"pool{number}", pool)
    metrics = classify(b, classifier(b, flatten(b, x, "flat"), HIDDEN, options))
    return options.train(b, metrics)
