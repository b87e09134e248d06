"""Image classifiers: MLP, CNN and wide ResNet.

MLP-L-H has L bias-free fully connected layers H x H with relu between them; the outputs of the last are the logits.
CNN-L-C has L padded 3x3 convolutions from C to C channels (SoyBean's and DistPar's five-layer CNN). WResNet-L-W is a
bottleneck ResNet with every convolution's channels multiplied by W (Tofu Sec 7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from planner.errors import GraphError
from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.layers import (
    EXPANSION,
    RELU_GAIN,
    batch_norm,
    classify,
    convolution,
    linear,
    max_pool,
    pooled_classifier,
)
from planner.models.options import RUNNING, ImageOptions, Training, option, width


@dataclass(frozen=True, slots=True)
class MlpOptions(Training):
    """Options of an MLP."""

    first_input_gradient: bool = option(False, "Compute the gradient of the input, although nothing uses it.")


def build_mlp(layers: str, hidden: str, options: MlpOptions) -> Graph:
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


@dataclass(frozen=True, slots=True)
class CnnOptions(ImageOptions):
    """Options of a CNN."""

    image: int = option(24, "Height and width of the images.")
    channels: int | None = option(None, "Channels of the images; default: C.")  # type: ignore[assignment]
    classes: int = option(1000, "Number of classes.")
    batch_norm: bool = option(False, "Batch norm after each convolution.")
    running_statistics: bool = option(False, RUNNING)


def build_cnn(layers: str, channels: str, options: CnnOptions) -> Graph:
    """Return the training graph of a CNN: convolutions, each followed by relu, then a global mean and a classifier.

    The images have C channels too unless the option `channels` is set. Batch norm is off by default.
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


PATTERN = r"wresnet-([1-9]\d*)-(\d+(?:\.\d+)?)"
UNITS = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
STAGE_WIDTHS = (64, 128, 256, 512)
SMALLEST_POOLED_IMAGE = 64


@dataclass(frozen=True, slots=True)
class Backbone(ImageOptions):
    """Options of the features of a wide ResNet."""

    batch_norm: bool = option(True, "Batch norm after each convolution.")
    running_statistics: bool = option(False, RUNNING)
    stride_first: bool = option(False, "Put the stride on the first 1x1 convolution of a block, as in 2015.")


@dataclass(frozen=True, slots=True)
class WresnetOptions(Backbone):
    """Options of a wide ResNet."""

    classes: int = option(1000, "Number of classes.")


def build_wresnet(depth: str, widening: str, options: WresnetOptions) -> Graph:
    """Return the training graph of a wide ResNet: its features, a global mean, and a classifier without bias."""
    b = GraphBuilder(options.dtype)
    metrics = pooled_classifier(b, features(b, depth, widening, options), options.classes)
    return options.train(b, metrics)


def features(b: GraphBuilder, depth: str, widening: str, options: Backbone) -> str:
    """Add the input "images" and all blocks; return the last one's activation [n, c, y, x].

    L must be one of `UNITS`, and 64 W an integer; raises GraphError otherwise. For images of at least 64 pixels the
    stem is a 7x7 convolution of stride 2 and a 3x3 max pool of stride 2; smaller images get a 3x3 convolution of stride
    1 and no pool, as is usual. Stages 2 to 4 halve the image with the 3x3 convolution of their first block, or with the
    1x1 convolution before it (He and others, CVPR 2016). Batch norm is on by default.
    """
    units = UNITS.get(int(depth))
    if units is None:
        raise GraphError(f"wresnet-{depth}-{widening}: L must be one of {', '.join(map(str, UNITS))}")
    base = STAGE_WIDTHS[0] * Fraction(widening)
    if base.denominator != 1 or base < 1:
        raise GraphError(f"wresnet-{depth}-{widening}: 64 W channels must be a positive integer, found {float(base)}")
    size = options.image
    images = b.input("images", (options.samples, options.channels, size, size))
    net = _Network(b, options, sum(units))
    x = net.stem(images, int(base))
    for stage, (channels, count) in enumerate(zip(STAGE_WIDTHS, units, strict=True), start=1):
        for unit in range(1, count + 1):
            stride = 2 if stage > 1 and unit == 1 else 1
            x = net.block(x, f"stage{stage}.unit{unit}", int(channels * Fraction(widening)), stride)
    return x


@dataclass(frozen=True, slots=True)
class _Network:
    """The parts of one network: its builder, its options, its number of blocks."""

    b: GraphBuilder
    options: Backbone
    blocks: int

    def stem(self, images: str, channels: int) -> str:
        """Return the first convolution's activation, pooled for large images."""
        if self.b.shape(images)[2] < SMALLEST_POOLED_IMAGE:
            return self._relu(self._convolution(images, "stem.conv", (channels, 3, 1)), "stem.relu")
        x = self._relu(self._convolution(images, "stem.conv", (channels, 7, 2)), "stem.relu")
        return max_pool(self.b, x, "stem.pool", 3, padding=1)

    def block(self, x: str, name: str, width: int, stride: int) -> str:
        """Return a bottleneck block's activation: 1x1, 3x3, 1x1, and a projection if the shape changes."""
        wide = EXPANSION * width
        first, second = (stride, 1) if self.options.stride_first else (1, stride)
        y = self._relu(self._convolution(x, f"{name}.conv1", (width, 1, first)), f"{name}.relu1")
        y = self._relu(self._convolution(y, f"{name}.conv2", (width, 3, second)), f"{name}.relu2")
        # Without batch norm the residual sums would grow with depth, so each block gets a smaller gain.
        gain = 1.0 if self.options.batch_norm else 1.0 / math.sqrt(self.blocks)
        y = self._convolution(y, f"{name}.conv3", (wide, 1, 1), gain)
        if stride != 1 or self.b.shape(x)[1] != wide:
            x = self._convolution(x, f"{name}.shortcut", (wide, 1, stride), 1.0)
        return self._relu(self.b.apply("add", y, x, name=f"{name}.add"), f"{name}.relu3")

    def _convolution(self, x: str, name: str, size: tuple[int, int, int], gain: float = RELU_GAIN) -> str:
        y = convolution(self.b, x, name, size, gain)
        if not self.options.batch_norm:
            return y
        return batch_norm(self.b, y, f"{name}.bn", self.options.running_statistics)

    def _relu(self, x: str, name: str) -> str:
        return self.b.apply("relu", x, name=name)
