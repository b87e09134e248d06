"""MLP-L-H: L bias-free fully connected layers H x H with relu between, the last one's outputs being the logits."""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.layers import RELU_GAIN, classify, linear
from planner.models.options import Training, option, width


@dataclass(frozen=True, slots=True)
class MlpOptions(Training):
    """What can be chosen about an MLP."""

    first_input_gradient: bool = option(False, "Whether the first layer's data gradient is computed, for no use.")


def build(layers: str, hidden: str, options: MlpOptions) -> Graph:
    """Return the training graph of an MLP: inputs [batch, H], and as many classes as hidden units."""
    b = GraphBuilder(options.dtype)
    count, units = int(layers), width(hidden)
    images = b.input("images", (options.samples, units))
    x = images
    for layer in range(1, count + 1):
        last = layer == count
        x = linear(b, x, units, f"fc{layer}", gain=1.0 if last else RELU_GAIN)
        if not last:
            x = b.apply("relu", x, name=f"relu{layer}")
    also = (images,) if options.first_input_gradient else ()
    return options.train(b, classify(b, x), also)
