"""CNN-L-C: L convolutions of 3x3, padded, from C to C channels (SoyBean's and DistPar's five-layer CNN)."""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.layers import batch_norm, convolution, pooled_classifier
from planner.models.options import RUNNING, ImageOptions, option, width


@dataclass(frozen=True, slots=True)
class CnnOptions(ImageOptions):
    """What can be chosen about a CNN."""

    image: int = option(24, "Height and width of the images.")
    channels: int | None = option(None, "Channels of the images; default: C.")  # type: ignore[assignment]
    classes: int = option(1000, "Classes to tell apart.")
    batch_norm: bool = option(False, "Batch norm after each convolution.")
    running_statistics: bool = option(False, RUNNING)


def build(layers: str, channels: str, options: CnnOptions) -> Graph:
    """Return the training graph of a CNN: each convolution followed by relu, then global mean and a classifier.

    The images have C channels too unless the option `channels` says otherwise; batch norm is off by default.
    """
    b = GraphBuilder(options.dtype)
    size, count = options.image, width(channels)
    x = b.input("images", (options.samples, options.channels or count, size, size))
    for layer in range(1, int(layers) + 1):
        x = convolution(b, x, f"conv{layer}", (count, 3, 1))
        if options.batch_norm:
            x = batch_norm(b, x, f"bn{layer}", options.running_statistics)
        x = b.apply("relu", x, name=f"relu{layer}")
    metrics = pooled_classifier(b, x, options.classes)
    return options.train(b, metrics)
