"""AlexNet and VGG-16: convolutions one after the other, and three fully connected layers with biases; no dropout.

AlexNet is as trained on one device, its channels those of Krizhevsky's "One weird trick for parallelizing convolutional
neural networks"; as in today's implementations there is no response normalization. VGG-16 is configuration D of
Simonyan and Zisserman, its convolutions without biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.layers import RELU_GAIN, add_bias, classify, convolution, flatten, linear, max_pool
from planner.models.options import Scaled, scaled

HIDDEN = 4096


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution with what its name ends in, its size, and the kernel of the max pool of stride 2 behind it, if any.

    A pool's name ends in what stands before the underscore.
    """

    mark: str
    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    pool: int = 0


ALEXNET = (
    Layer("1", 64, 11, 4, 2, pool=3),
    Layer("2", 192, 5, 1, 2, pool=3),
    Layer("3", 384),
    Layer("4", 256),
    Layer("5", 256, pool=3),
)
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels of VGG-16's stages, and how many layers."""

VGG_16 = tuple(
    Layer(f"{stage}_{number}", channels, pool=2 if number == count else 0)
    for stage, (channels, count) in enumerate(STAGES, start=1)
    for number in range(1, count + 1)
)


def build(layers: Sequence[Layer], biases: bool, options: Scaled) -> Graph:
    """Return the training graph, every width but the classes' times `options.width`; convolutions may have biases.

    Raises GraphError for images that are too small (AlexNet takes 63 pixels, VGG-16 32), and where a scaled width is no
    integer.
    """
    b = GraphBuilder(options.dtype)
    x = b.input("images", (options.samples, options.channels, options.image, options.image))
    for layer in layers:
        size = scaled(layer.channels, options.width), layer.kernel, layer.stride, layer.padding
        x = convolution(b, x, f"conv{layer.mark}", size)
        if biases:
            x = add_bias(b, x, f"conv{layer.mark}", 1)
        x = b.apply("relu", x, name=f"relu{layer.mark}")
        if layer.pool:
            x = max_pool(b, x, f"pool{layer.mark.partition('_')[0]}", layer.pool)
    x, hidden = flatten(b, x, "flat"), scaled(HIDDEN, options.width)
    for number in (1, 2):
        x = add_bias(b, linear(b, x, hidden, f"fc{number}", gain=RELU_GAIN), f"fc{number}", 1)
        x = b.apply("relu", x, name=f"fc{number}.relu")
    return options.train(b, classify(b, add_bias(b, linear(b, x, options.classes, "fc3"), "fc3", 1)))
