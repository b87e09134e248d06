"""Data sets: their interface, the order of samples, random samples, and users' arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from executor.values import Array, ArrayModule, Tile, fill, hashed, indices, rows, stream
from executor.weights import Npz
from planner.errors import DataError
from planner.graph.facts import batch_size, classification
from planner.graph.ir import Graph, Init, Tensor

Numbers = NDArray[np.int64]

REMEMBERED_EPOCHS = 4
"""A batch lies in a few consecutive epochs; earlier ones are not needed again."""


class DataSet(Protocol):
    """Values of the graph's inputs, batch after batch. They depend only on `identity`, seed and step."""

    @property
    def identity(self) -> str:
        """Identifies the data set in a checkpoint. Other data have another identity."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in which every sample is seen once, rounded up."""

    @property
    def held_out(self) -> HeldOut | None:
        """Samples that training never sees, in batches; None if there are none."""

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`, for a step counted from 0."""


class Samples(Protocol):
    """Samples in host memory."""

    @property
    def count(self) -> int:
        """Number of samples."""

    def write(self, xp: ArrayModule, out: Array, tile: Tile, chosen: Callable[[Numbers], Numbers]) -> None:
        """Write an input's tile into `out`. `chosen` maps positions in the batch to samples."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Samples that training never sees, in batches of a fixed order.

    If the metric is "logits" (right answers), the last batch is padded with the last sample; "loss" uses only whole
    batches.
    """

    samples: Samples
    batch: int
    metric: Literal["logits", "loss"]

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.samples.count

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that are scored."""
        return self.count // self.batch if self.metric == "loss" else -(-self.count // self.batch)

    def real(self, step: int) -> int:
        """Return the number of samples in a batch, without padding."""
        return min(self.batch, self.count - step * self.batch)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        self.samples.write(xp, out, tile, lambda places: np.minimum(places + step * self.batch, self.count - 1))


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Samples in batches. If `mixed`, each epoch has a new order that follows from name, seed and epoch.

    `digest` identifies the samples, if they are not part of the project.
    """

    name: str
    samples: Samples
    batch: int
    seed: int
    held_out: HeldOut | None
    digest: str = ""
    mixed: bool = True

    @property
    def identity(self) -> str:
        """Identifies the data set in a checkpoint."""
        return f"{self.name} {self.digest}" if self.digest else self.name

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in which every sample is seen, rounded up."""
        return -(-self.samples.count // self.batch)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        self.samples.write(xp, out, tile, lambda places: self._chosen(places + step * self.batch))

    def _chosen(self, places: Numbers) -> Numbers:
        """Return the samples at positions in the endless sequence of epochs."""
        epochs, within = np.divmod(places, self.samples.count)
        if not self.mixed:
            return within
        numbers = np.empty_like(within)
        for epoch in np.unique(epochs).tolist():
            now = epochs == epoch
            numbers[now] = epoch_order(self.seed, self.name, epoch, self.samples.count)[within[now]]
        return numbers


def permutation(number: np.uint64, count: int) -> Numbers:
    """Return a permutation of `count` numbers that depends only on the random stream."""
    order: Numbers = np.argsort(hashed(np.arange(count, dtype=np.uint64), number), kind="stable")
    return order


@lru_cache(REMEMBERED_EPOCHS)
def epoch_order(seed: int, name: str, epoch: int, count: int) -> Numbers:
    """Return the order of the samples in an epoch of a data set."""
    return permutation(stream(seed, f"{name}/epoch", epoch), count)


def data_tensors(graph: Graph) -> tuple[Tensor, ...]:
    """Return the tensors of a graph that a data set provides."""
    return tuple(t for t in graph.tensors.values() if t.init is not None and t.init.kind == "data")


UNIT_VARIANCE = math.sqrt(3.0)
"""Uniform values in [-sqrt(3), sqrt(3)) have variance 1."""


class Random:
    """Random images with variance 1 and labels below the number of classes, new in every step."""

    identity = "random"
    steps_per_epoch = 1
    held_out: HeldOut | None = None

    def __init__(self, graph: Graph, seed: int) -> None:
        self._seed = seed
        self._inits = {tensor.name: _random_init(graph, tensor) for tensor in data_tensors(graph)}

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        random = replace(tile, tensor=replace(tile.tensor, init=self._inits[tile.tensor.name]))
        fill(xp, out, random, stream(self._seed, tile.tensor.name, step))


TRUTH_VALUES = 2
"""Integer inputs without a known range are 0 or 1."""


def _random_init(graph: Graph, tensor: Tensor) -> Init:
    """Return how a tensor is filled."""
    init = tensor.init or Init("data")
    if tensor.dtype != "int32":
        return replace(init, kind="uniform", scale=UNIT_VARIANCE)
    logits = graph.metrics.get("logits")
    below = init.below or (TRUTH_VALUES if logits is None else graph.tensors[logits].shape[-1])
    if not init.below and logits is None and tensor.name == graph.metrics.get("labels"):
        raise DataError(f"input {tensor.name}: expected its initial value to tell the number of classes, found 0")
    return replace(init, kind="integers", below=below)


HELD_OUT = "held_out_"

DIGESTED_BYTES = 1 << 20
"""Number of leading bytes of each file in a folder that its digest covers."""

ROWS = "rows"
"""Identity, in checkpoints, of samples in file order."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays [samples, rows, ...] by input. An input may have several rows per sample of the batch.

    For an input of vectors, integers [samples, rows] are shown one-hot.
    """

    values: Mapping[str, NDArray[Any]]

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(next(iter(self.values.values())))

    def write(self, xp: ArrayModule, out: Array, tile: Tile, chosen: Callable[[Numbers], Numbers]) -> None:
        """Write an input's tile into its local array; see Samples."""
        values = self.values[tile.tensor.name]
        places, within = np.divmod(rows(tile), values.shape[1])
        samples = values[chosen(places), within]
        if isinstance(values, np.memmap):
            _check_values(tile.tensor.name, tile.tensor, samples)
        if samples.ndim < len(tile.region):
            samples = samples[:, None] == indices(tile.region[1])
        elif tile.region[1:]:
            samples = samples[np.ix_(np.arange(len(samples)), *map(indices, tile.region[1:]))]
        out[...] = xp.asarray(samples.astype(tile.tensor.dtype))


def user_arrays(path: Path, graph: Graph, seed: int, mixed: bool = True) -> Shuffled:
    """Return the samples of a file. Raises InputError, naming the file, if they do not fit the graph, and OSError."""
    try:
        return _arrays(path, graph, seed, mixed)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _arrays(path: Path, graph: Graph, seed: int, mixed: bool) -> Shuffled:
    held = _read(path)
    inputs, batch = data_tensors(graph), batch_size(graph) or 0
    each = batch // graph.micro_batches
    if not inputs:
        raise DataError("expected a graph with inputs, found none")
    names = [prefix + tensor.name for prefix in ("", HELD_OUT) for tensor in inputs]
    if strange := [name for name in held if name not in names]:
        raise DataError(f"expected arrays {', '.join(names)}, found {', '.join(strange)}")
    training = _samples(held, inputs, "", each)
    if training.count < batch:
        raise DataError(f"expected at least the {batch} samples of a batch, found {training.count}: plan a smaller one")
    held_out = None
    if any(name.startswith(HELD_OUT) for name in held):
        samples = _samples(held, inputs, HELD_OUT, each)
        held_out = HeldOut(samples, each, "loss" if classification(graph) is None else "logits")
    return Shuffled("arrays" if mixed else ROWS, training, batch, seed, held_out, _digest(path), mixed)


def _digest(path: Path) -> str:
    """Return a digest of a file's content. For a folder, it covers the sizes and the beginnings of its files."""
    if path.is_file():
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    digest = sha256()
    for part in sorted(path.glob("*.npy")):
        with part.open("rb") as file:
            digest.update(f"{part.name} {part.stat().st_size} ".encode() + file.read(DIGESTED_BYTES))
    return digest.hexdigest()


def _read(path: Path) -> Mapping[str, NDArray[Any]]:
    """Read all arrays of a file. Nothing in it is executed."""
    if path.suffix == ".npz":
        return dict(Npz(path))
    if path.is_dir():
        return {part.stem: _mapped(part) for part in path.glob("*.npy")}
    try:
        with path.open("rb"):  # an OSError names the file
            return dict(load_file(path))
    except (SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"expected arrays as safetensors' save_file writes them: {error}") from error


def _mapped(path: Path) -> NDArray[Any]:
    """Map a file's array into memory."""
    try:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path.name}: expected an array as numpy.save writes it: {error}") from error
    return mapped


def _samples(held: Mapping[str, NDArray[Any]], inputs: tuple[Tensor, ...], prefix: str, batch: int) -> Arrays:
    arrays = {tensor.name: _fitting(held, tensor, prefix, batch) for tensor in inputs}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise DataError(f"expected the same number of samples for every input, found {counts}")
    return Arrays(arrays)


def _fitting(held: Mapping[str, NDArray[Any]], tensor: Tensor, prefix: str, batch: int) -> NDArray[Any]:
    """Return an input's array as [samples, rows per sample, ...]."""
    name = prefix + tensor.name
    if name not in held:
        raise DataError(f"expected an array {name}, found {', '.join(held) or 'none'}")
    array, rest = held[name], tensor.shape[1:]
    each = tensor.shape[0] // batch
    if array.ndim < 1 or array.shape[1:] not in {(each, *rest), *([rest] if each == 1 else [])}:
        expected = ["samples", *([each] if each > 1 else []), *rest]
        raise DataError(f"{name}: expected shape [{', '.join(map(str, expected))}], found {list(array.shape)}")
    # A mapped array is not read as a whole; each batch is checked when it is read.
    _check_values(name, tensor, array[:1] if isinstance(array, np.memmap) else array)
    return array.reshape(len(array), each, *rest)


def _check_values(name: str, tensor: Tensor, array: NDArray[Any]) -> None:
    """Raise a DataError for values that an input cannot hold."""
    if tensor.dtype == "int32":
        check_numbers(name, tensor, array)
    elif array.dtype.kind not in "fiub" or not _is_finite_as(tensor.dtype, array):
        raise DataError(f"{name}: expected numbers that are finite as {tensor.dtype}, found {array.dtype} that are not")


def _is_finite_as(dtype: str, array: NDArray[Any]) -> bool:
    """Return whether all numbers are finite after conversion. It suffices to check the extremes."""
    if not array.size:
        return True
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.array([array.min(), array.max()]).astype(dtype)).all())


def check_numbers(name: str, tensor: Tensor, array: NDArray[Any]) -> None:
    """Raise a DataError for values that are no valid integers of an input, such as labels beyond the classes."""
    init, every = tensor.init or Init("data"), np.iinfo(np.int32)
    least, below = (0, init.below) if init.below else (every.min, every.max + 1)
    if array.dtype.kind not in "iu":
        raise DataError(f"{name}: expected whole numbers, found {array.dtype}")
    counted = array if init.ignored is None else array[array != init.ignored]
    if counted.size and not (counted.min() >= least and counted.max() < below):
        expected = f"{below}" if init.ignored is None else f"{below}, or {init.ignored}"
        raise DataError(f"{name}: expected numbers from {least} below {expected}, found {array.min()} to {array.max()}")
