"""The benchmark's models of May 2017 (github.com/tensorflow/benchmarks, tf_cnn_benchmarks), without dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import planner
from planner.graph.ir import Graph
from planner.models import convolutional
from planner.models.convolutional import Layer
from planner.models.options import Scaled

ALEXNET = (
    Layer("1", 64, 11, 4, 0, pool=3),
    Layer("2", 192, 5, 1, 2, pool=3),
    Layer("3", 384),
    Layer("4", 384),
    Layer("5", 256, pool=3),
)
VGG_16 = tuple(replace(layer, mark=str(number)) for number, layer in enumerate(convolutional.VGG_16, start=1))
PLAIN: dict[str, tuple[Sequence[Layer], int]] = {"AlexNet": (ALEXNET, 227), "VGG-16": (VGG_16, 224)}
RESNETS = {"ResNet-50": "wresnet-50-1", "ResNet-152": "wresnet-152-1"}


def build(name: str, batch: int) -> Graph:
    """Return a model's training graph, with plain gradient descent."""
    if name in RESNETS:
        return planner.model(RESNETS[name], batch=batch, image=224, optimizer="sgd", stride_first=True)
    layers, image = PLAIN[name]
    return convolutional.build(layers, True, Scaled(batch=batch, image=image, optimizer="sgd"))
