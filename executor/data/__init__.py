"""Data sets: the inputs of an iteration. Every worker creates only its region of the global batch.

Bundled are handwritten digits for image classifiers, and source text for language models.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from executor.data.base import (
    ROWS as ROWS,
    Arrays,
    DataSet as DataSet,
    HeldOut as HeldOut,
    Numbers,
    Random as Random,
    Shuffled as Shuffled,
    data_tensors as data_tensors,
    permutation,
    user_arrays,
)
from executor.values import Array, ArrayModule, Tile, indices, rows, stream
from planner.errors import DataError as DataError
from planner.graph.ir import Graph, Tensor
from planner.layout import Runs

DIGIT_SIDE = 8
DIGIT_CLASSES = 10
HELD_OUT = 360
"""Number of held-out images, a fifth of 1797."""


@dataclass(frozen=True, slots=True)
class Images:
    """Samples in host memory: standardised pixels [samples, 9, 9], whose last row and column are background; labels."""

    pixels: NDArray[np.float64]
    labels: NDArray[np.int32]

    @property
    def count(self) -> int:
        """Number of images."""
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

    Pixels are standardised by the mean and deviation of the training images.
    """
    bunch = import_module("sklearn.datasets").load_digits()  # slow import: takes a second
    order = permutation(stream(seed, "digits/split"), len(bunch.target))
    kept, held = order[HELD_OUT:], order[:HELD_OUT]
    mean, deviation = bunch.images[kept].mean(), bunch.images[kept].std()
    framed = np.pad(bunch.images, ((0, 0), (0, 1), (0, 1)))
    pixels, labels = (framed - mean) / deviation, bunch.target.astype(np.int32)
    return Images(pixels[kept], labels[kept]), Images(pixels[held], labels[held])


def digit_images(graph: Graph, seed: int) -> Shuffled:
    """Return handwritten digits for a graph with one image input and one label input. A fifth is held out.

    Images [N, C, H, W] are enlarged to the largest multiple of 8 that fits and centred, the same in every channel;
    images [N, W] are the 64 pixels, repeated up to the width. Raises DataError if the graph does not fit.
    """
    samples = _fitting_images(graph).shape[0]
    training, held_out = load_digits(seed)
    return Shuffled("digits", training, samples * graph.micro_batches, seed, HeldOut(held_out, samples, "logits"))


def _sources(runs: Runs, extent: int) -> NDArray[np.int64]:
    """Return the digit pixel that each row (column) of an image shows; 8, the background, in the frame."""
    repeat = extent // DIGIT_SIDE
    before = (extent - repeat * DIGIT_SIDE) // 2
    shown = (indices(runs) - before) // repeat
    return np.where((shown >= 0) & (shown < DIGIT_SIDE), shown, DIGIT_SIDE)


def _fitting_images(graph: Graph) -> Tensor:
    """Return the image input (of a micro-batch). Raises DataError if the inputs do not fit."""
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


CHARACTERS = 128
"""ASCII. Other characters are read as question marks."""

LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"})
"""Folders that not every installation has, or that hold other packages."""

HELD_OUT_PART = 10
"""One in this many characters is held out, in whole files."""

HELD_OUT_CHARACTERS = 1 << 16
"""Number of held-out characters, evenly spaced, that an evaluation predicts."""

Codes = NDArray[np.uint8]


def source_text(graph: Graph, seed: int) -> Shuffled:
    """Return windows of the standard library's source, for a graph with tokens or with vectors at every timestep.

    Whole files with a tenth of all characters are held out. Raises DataError if the graph does not fit.
    """
    shown, labels, length = _fitting(graph)
    files = source_files(Path(sysconfig.get_path("stdlib")))
    order = permutation(stream(seed, "text/split"), len(files))
    sizes = np.cumsum([len(files[number]) for number in order])
    held = frozenset(order[: int(np.searchsorted(sizes, sizes[-1] // HELD_OUT_PART)) + 1].tolist())
    kept = [file for number, file in enumerate(files) if number not in held]
    training, held_out = np.concatenate(kept), np.concatenate([files[number] for number in sorted(held)])
    digest = sha256(training.data)
    digest.update(held_out.data)
    each = shown[0].shape[0]
    scored = windows(held_out, length)
    return Shuffled(
        "text",
        _arrays(windows(training, length), shown, labels),
        each * graph.micro_batches,
        seed,
        HeldOut(_arrays(scored[_spaced(len(scored), length, each)], shown, labels), each, "loss"),
        digest.hexdigest(),
    )


def _arrays(codes: Codes, shown: list[Tensor], labels: list[Tensor]) -> Arrays:
    """Return windows [count, length + 1] as inputs. The label of each character is the next one.

    Tokens are [n, length] with as many labels, or there is one input of each per timestep.
    """
    if len(shown) == 1 and shown[0].dtype == "int32":
        after = codes[:, 1:].reshape(len(codes), -1, *labels[0].shape[1:])
        return Arrays({shown[0].name: codes[:, None, :-1], labels[0].name: after})
    places = [
        (tensor, place) for first, group in enumerate((shown, labels)) for place, tensor in enumerate(group, first)
    ]
    return Arrays({tensor.name: codes[:, place : place + 1] for tensor, place in places})


@lru_cache(1)
def source_files(folder: Path) -> tuple[Codes, ...]:
    """Return the characters of every Python file in a folder, ordered by path."""
    paths = (path for path in folder.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(folder).parts))
    contents = (np.frombuffer(path.read_bytes(), np.uint8) for path in sorted(paths))
    return tuple(np.where(codes < CHARACTERS, codes, ord("?")).astype(np.uint8) for codes in contents if len(codes))


def windows(codes: Codes, length: int) -> Codes:
    """Return adjacent windows, each with the character after it: [count, length + 1]."""
    return sliding_window_view(codes, length + 1)[::length]


def _spaced(count: int, length: int, batch: int) -> Numbers:
    """Return the windows that are evaluated: evenly spaced, in whole batches."""
    wanted = max(batch, HELD_OUT_CHARACTERS // length // batch * batch)
    spaced: Numbers = np.arange(wanted) * count // wanted
    return spaced


def _fitting(graph: Graph) -> tuple[list[Tensor], list[Tensor], int]:
    """Return the inputs that show windows, the labels, and the characters per window.

    Raises DataError if they do not fit.
    """
    inputs = data_tensors(graph)
    labels = [t for t in inputs if t.dtype == "int32" and (len(t.shape) == 1 or t.name == graph.metrics.get("labels"))]
    shown = [tensor for tensor in inputs if tensor not in labels]
    length = _tokens(shown, labels) or _timesteps(shown, labels)
    if not length:
        shapes = ", ".join(f"{tensor.name} {tensor.dtype} {list(tensor.shape)}" for tensor in inputs) or "no inputs"
        raise DataError(
            "data set text: expected int32 tokens [n, s] and as many labels, or vectors [n, width] and int32 labels "
            f"[n] at every timestep, found {shapes}"
        )
    for tensor in inputs:
        known = tensor.init.below if tensor.dtype == "int32" and tensor.init is not None else tensor.shape[-1]
        if 0 < known < CHARACTERS:
            raise DataError(
                f"data set text: expected {tensor.name} to tell {CHARACTERS} characters apart, found {known}"
            )
    return shown, labels, length


def _tokens(shown: list[Tensor], labels: list[Tensor]) -> int:
    """Return the number of tokens per window; 0 if the inputs are not tokens."""
    if len(shown) != 1 or len(labels) != 1 or shown[0].dtype != "int32" or len(shown[0].shape) != 2:
        return 0
    return shown[0].shape[1] if prod(labels[0].shape) == prod(shown[0].shape) else 0


def _timesteps(shown: list[Tensor], labels: list[Tensor]) -> int:
    """Return the number of timesteps with vectors and labels; 0 if the inputs are different."""
    shapes = {tensor.shape for tensor in shown if tensor.dtype != "int32" and len(tensor.shape) == 2}
    samples = {shape[:1] for shape in shapes} | {tensor.shape for tensor in labels}
    return len(labels) if len(shown) == len(labels) and len(shapes) == len(samples) == 1 else 0


MakeDataSet = Callable[[Graph, int], DataSet]
"""Makes a data set for a graph and a seed. Raises DataError if the graph does not fit."""

DATA_SETS: dict[str, MakeDataSet] = {"random": Random, "digits": digit_images, "text": source_text}
"""Data sets by name. `executor.extensions.data_set` adds users' own."""

ARRAYS = (".npz", ".safetensors")
"""Suffixes of files with a user's own arrays."""


def data_set(name: str, graph: Graph, seed: int, mixed: bool = True) -> DataSet:
    """Return a data set by name, or that of a user's file or folder of arrays. Raises InputError or OSError.

    Only a file's samples can keep their order (`mixed` is false).
    """
    if name in DATA_SETS and not mixed:
        raise DataError(f"data set {name}: --in-order needs a file, whose samples have an order")
    if name in DATA_SETS:
        data = DATA_SETS[name](graph, seed)
        if not isinstance(getattr(data, "identity", None), str):
            raise DataError(f"data set {name}: expected a DataSet, found {data!r}")
        return data
    if name.endswith(ARRAYS) or Path(name).is_dir():
        return user_arrays(Path(name), graph, seed, mixed)
    raise DataError(
        f"unknown data set {name!r}: expected {', '.join(DATA_SETS)} or a file NAME{' or NAME'.join(ARRAYS)}, or a "
        "folder of NAME.npy"
    )
