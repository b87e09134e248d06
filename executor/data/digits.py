"""Handwritten digits, as every classifier of images or of flat pixels can take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from executor.data.base import HeldOut, Numbers, Shuffled, data_tensors, permutation
from executor.values import Array, ArrayModule, Tile, indices, rows, stream
from planner.errors import DataError
from planner.graph.ir import Graph, Tensor
from planner.layout import Runs

DIGIT_SIDE = 8
DIGIT_CLASSES = 10
HELD_OUT = 360
"""Held-out images of 1797: a fifth."""


@dataclass(frozen=True, slots=True)
class Images:
    """Samples in host memory: standardised pixels [samples, 9, 9], whose last row and column are background; labels."""

    pixels: NDArray[np.float64]
    labels: NDArray[np.int32]

    @property
    def count(self) -> int:
        """How many images there are."""
        return len(self.labels)

    def write(self, xp: ArrayModule, out: Array, tile: Tile, chosen: Callable[[Numbers], Numbers]) -> None:
        """Write the images of a tile's rows, or their labels, into its local array; see Samples."""
        shape, region = tile.tensor.shape, tile.region
        samples = chosen(rows(tile))
        if tile.tensor.dtype == "int32":
            out[...] = xp.asarray(self.labels[samples])
            return
        pixels = self.pixels[samples]
        if len(shape) == 2:
            flat = indices(region[1]) % DIGIT_SIDE**2
            values = pixels[:, flat // DIGIT_SIDE, flat % DIGIT_SIDE]
        else:
            ys, xs = (_sources(runs, extent) for runs, extent in zip(region[2:], shape[2:], strict=True))
            values = pixels[:, ys[:, None], xs][:, None]
        out[...] = xp.asarray(values.astype(tile.tensor.dtype))


def load_digits(seed: int) -> tuple[Images, Images]:
    """Return training and held-out images of handwritten digits (1797 of 8 x 8, 10 classes), split by the seed.

    Pixels are standardised with the training images' mean and deviation.
    """
    bunch = import_module("sklearn.datasets").load_digits()  # takes a second; only when asked for
    order = permutation(stream(seed, "digits/split"), len(bunch.target))
    kept, held = order[HELD_OUT:], order[:HELD_OUT]
    mean, deviation = bunch.images[kept].mean(), bunch.images[kept].std()
    framed = np.pad(bunch.images, ((0, 0), (0, 1), (0, 1)))
    pixels, labels = (framed - mean) / deviation, bunch.target.astype(np.int32)
    return Images(pixels[kept], labels[kept]), Images(pixels[held], labels[held])


def digit_images(graph: Graph, seed: int) -> Shuffled:
    """Return handwritten digits for a graph with one images input and one labels input; a fifth is held out.

    Images [N, C, H, W] are repeated to the largest multiple of 8 that fits, centred, the same in every channel;
    images [N, W] are the 64 pixels tiled to the width. Raises DataError where the graph does not fit.
    """
    samples = _fitting_images(graph).shape[0]
    training, held_out = load_digits(seed)
    return Shuffled("digits", training, samples * graph.micro_batches, seed, HeldOut(held_out, samples, "logits"))


def _sources(runs: Runs, extent: int) -> NDArray[np.int64]:
    """Return which pixel of a digit each row (column) of an image shows; the frame shows the background, pixel 8."""
    repeat = extent // DIGIT_SIDE
    before = (extent - repeat * DIGIT_SIDE) // 2
    shown = (indices(runs) - before) // repeat
    return np.where((shown >= 0) & (shown < DIGIT_SIDE), shown, DIGIT_SIDE)


def _fitting_images(graph: Graph) -> Tensor:
    """Return the images input, a micro-batch's, once it and the labels are known to fit."""
    inputs = data_tensors(graph)
    labels = [tensor for tensor in inputs if tensor.dtype == "int32"]
    images = [tensor for tensor in inputs if tensor.dtype != "int32"]
    if len(labels) != 1 or len(images) != 1:
        raise DataError(
            f"data set digits: expected one input of images and one of labels, found {len(images)} and {len(labels)}"
        )
    (label,), (image,) = labels, images
    shape = list(image.shape)
    wide_enough = {2: shape[-1] >= DIGIT_SIDE**2, 4: min(shape[-2:], default=0) >= DIGIT_SIDE}
    if not wide_enough.get(len(shape), False):
        raise DataError(
            f"data set digits: expected {image.name} of shape [N, C, H >= 8, W >= 8] or [N, W >= 64], found {shape}"
        )
    if list(label.shape) != shape[:1]:
        raise DataError(f"data set digits: expected {label.name} of shape {shape[:1]}, found {list(label.shape)}")
    classes = label.init.below if label.init is not None else 0
    if 0 < classes < DIGIT_CLASSES:
        raise DataError(f"data set digits: expected at least {DIGIT_CLASSES} classes, found {classes}")
    return image
