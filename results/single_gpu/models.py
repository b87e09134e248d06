"""The benchmark's models of May 2017 (github.com/tensorflow/benchmarks, tf_cnn_benchmarks), without dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paper_models import VGG_16 as PUBLISHED, Layer, build_pooled

import planner
from planner.graph.ir import Graph
from planner.models.options import Scaled

ALEXNET = (
    Layer("1", 64, 11, 4, 0, pool=3),
    Layer("2", 192, 5, 1, 2, pool=3),
    Layer("3", 384),
    Layer("4", 384),
    Layer("5", 256, pool=3),
)
VGG_16 = tuple(replace(layer, mark=str(number)) for number, layer in enumerate(PUBLISHED, start=1))
RESNETS = {"ResNet-50": "wresnet-50-1", "ResNet-152": "wresnet-152-1"}


def alexnet(batch: int, micro_batches: int = 1, dtype: str = "float32", optimizer: str = "sgd") -> Graph:
    """Return the training graph of the benchmark's AlexNet, on images of 227 pixels."""
    options = Scaled(batch=batch, micro_batches=micro_batches, dtype=dtype, optimizer=optimizer, image=227)
    return build_pooled(ALEXNET, True, options)


def vgg_16(batch: int, micro_batches: int = 1, dtype: str = "float32", optimizer: str = "sgd") -> Graph:
    """Return the training graph of the benchmark's VGG-16, whose convolutions have biases."""
    options = Scaled(batch=batch, micro_batches=micro_batches, dtype=dtype, optimizer=optimizer, image=224)
    return build_pooled(VGG_16, True, options)


PLAIN: dict[str, Callable[..., Graph]] = {"AlexNet": alexnet, "VGG-16": vgg_16}


def build(name: str, batch: int) -> Graph:
    """Return a model's training graph, with plain gradient descent."""
    if name in RESNETS:
        return planner.model(RESNETS[name], batch=batch, image=224, optimizer="sgd", stride_first=True)
    return PLAIN[name](batch)
