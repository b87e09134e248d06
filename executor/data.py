"""Data sets: what an iteration's inputs hold. Every worker makes just its region of the global batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from executor.values import Array, ArrayModule, Tile, fill, first_stream, hashed, indices, rows, stream
from planner.graph.facts import micro_batches
from planner.graph.ir import Graph, Init, Tensor
from planner.layout import Runs

UNIT_VARIANCE = math.sqrt(3.0)
"""Uniform values in [-sqrt(3), sqrt(3)) have variance 1."""

DIGIT_SIDE = 8
DIGIT_CLASSES = 10
HELD_OUT = 360
"""Held-out images of 1797: a fifth."""


class DataError(ValueError):
    """A data set does not fit the graph's inputs; the message says which tensor, and what was expected and found."""


class DataSet(Protocol):
    """Values for the graph's inputs, batch after batch."""

    @property
    def steps_per_epoch(self) -> int:
        """After how many steps every sample has been seen once, rounded up."""

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`, as it is at a step counted from 0."""


def data_tensors(graph: Graph) -> tuple[Tensor, ...]:
    """Return the graph's tensors that a data set provides."""
    return tuple(t for t in graph.tensors.values() if t.init is not None and t.init.kind == "data")


class Random:
    """Images from the global hash, with variance 1, and labels below the number of classes; new ones every step."""

    steps_per_epoch = 1

    def __init__(self, graph: Graph, seed: int) -> None:
        self._seed = seed
        self._inits = {tensor.name: _random_init(graph, tensor) for tensor in data_tensors(graph)}

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        made = Tile(replace(tile.tensor, init=self._inits[tile.tensor.name]), tile.region)
        fill(xp, out, made, first_stream(made.tensor, self._seed, step))


def _random_init(graph: Graph, tensor: Tensor) -> Init:
    """Return how a tensor is filled, for every micro-batch with its rows of the whole batch."""
    given = tensor.init or Init("data")
    if tensor.dtype != "int32":
        return replace(given, kind="uniform", scale=UNIT_VARIANCE)
    logits = graph.metrics.get("logits")
    below = given.below
    if not below and logits is not None:
        below = graph.tensors[logits].shape[-1]
    if not below:
        raise DataError(f"input {tensor.name}: expected its initial value to tell the number of classes, found 0")
    return replace(given, kind="integers", below=below)


def permutation(number: np.uint64, count: int) -> NDArray[np.int64]:
    """Return a permutation of `count` numbers that is a function of a stream alone."""
    order: NDArray[np.int64] = np.argsort(hashed(np.arange(count, dtype=np.uint64), number), kind="stable")
    return order


@dataclass(frozen=True, slots=True)
class Images:
    """Samples in host memory: standardised pixels [samples, 9, 9], whose last row and column are background; labels."""

    pixels: NDArray[np.float64]
    labels: NDArray[np.int32]

    def only(self, samples: NDArray[np.int64]) -> Images:
        """Return the images of these numbers."""
        return Images(self.pixels[samples], self.labels[samples])


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


class Digits:
    """Handwritten digits for a graph with one images input and one labels input; shuffled anew every epoch.

    Images [N, C, H, W] are repeated to the largest multiple of 8 that fits, centred, the same in every channel;
    images [N, W] are the 64 pixels tiled to the width. Raises DataError where the graph does not fit.
    """

    def __init__(self, graph: Graph, seed: int) -> None:
        images = _fitting_images(graph)
        self._seed = seed
        self._samples = images.shape[0]
        self.batch = self._samples * micro_batches(graph)
        self._training, self._held_out = load_digits(seed)
        self._orders: dict[int, NDArray[np.int64]] = {}

    @property
    def steps_per_epoch(self) -> int:
        """After how many steps every training image has been seen, rounded up."""
        return -(-len(self._training.labels) // self.batch)

    @property
    def held_out(self) -> HeldOut:
        """The held-out images, in batches of the same size; in micro-batches' where there are any."""
        return HeldOut(self._held_out, self._samples)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        places = rows(tile) + step * self.batch
        samples = np.array([self._sample(int(place)) for place in places], np.int64)
        _write(xp, out, tile, self._training.only(samples))

    def _sample(self, place: int) -> int:
        """Return the image at a place in the endless sequence of epochs."""
        epoch, within = divmod(place, len(self._training.labels))
        if epoch not in self._orders:
            number = stream(self._seed, "digits/epoch", epoch)
            # A batch lies in at most a few epochs that follow one another; earlier ones never return.
            self._orders = {e: order for e, order in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = permutation(number, len(self._training.labels))
        return int(self._orders[epoch][within])


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out images, batch after batch in a fixed order; the last batch is filled up with the last image."""

    images: Images
    batch: int

    @property
    def count(self) -> int:
        """How many images there are."""
        return len(self.images.labels)

    @property
    def steps_per_epoch(self) -> int:
        """How many batches hold all of them."""
        return -(-self.count // self.batch)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        samples = np.minimum(rows(tile) + step * self.batch, self.count - 1)
        _write(xp, out, tile, self.images.only(samples))

    def labels(self, step: int) -> NDArray[np.int32]:
        """Return the labels of a batch's real images, without those that fill it up."""
        return self.images.labels[step * self.batch : (step + 1) * self.batch]


def _write(xp: ArrayModule, out: Array, tile: Tile, images: Images) -> None:
    """Write the images of a tile's rows, or their labels, into its local array."""
    shape, region = tile.tensor.shape, tile.region
    if tile.tensor.dtype == "int32":
        out[...] = xp.asarray(images.labels)
        return
    if len(shape) == 2:
        flat = indices(region[1]) % DIGIT_SIDE**2
        found = images.pixels[:, flat // DIGIT_SIDE, flat % DIGIT_SIDE]
    else:
        ys, xs = (_sources(runs, extent) for runs, extent in zip(region[2:], shape[2:], strict=True))
        found = images.pixels[:, ys[:, None], xs][:, None]
    out[...] = xp.asarray(found.astype(tile.tensor.dtype))


def _sources(runs: Runs, extent: int) -> NDArray[np.int64]:
    """Return which pixel of a digit each row (column) of an image shows; the frame shows the background, pixel 8."""
    repeat = extent // DIGIT_SIDE
    before = (extent - repeat * DIGIT_SIDE) // 2
    shown = (indices(runs) - before) // repeat
    return np.where((shown >= 0) & (shown < DIGIT_SIDE), shown, DIGIT_SIDE)


def _fitting_images(graph: Graph) -> Tensor:
    """Return the images input, the first micro-batch's, once it and the labels are known to fit."""
    found = [tensor for tensor in data_tensors(graph) if tensor.init is not None and not tensor.init.row]
    labels = [tensor for tensor in found if tensor.dtype == "int32"]
    images = [tensor for tensor in found if tensor.dtype != "int32"]
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


DATA_SETS: Mapping[str, Callable[[Graph, int], DataSet]] = MappingProxyType({"random": Random, "digits": Digits})
"""Data sets by name."""
