"""Initial values of tensors from a hash of (seed, name, global element index).

Each worker creates only its tile, and any number of workers and any backend start from the same bits: floats are
computed from integers modulo 2**64 by exact operations and one rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import Init, Tensor, array_of
from planner.layout import Region, Runs, local_shape

Array = Any  # numpy.ndarray or cupy.ndarray; the two share no base class
ArrayModule = Any  # numpy or cupy

BLOCK_ELEMENTS = 1 << 18
"""Elements hashed at a time, which limits temporaries to a few MiB for tiles of any size."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Tile:
    """A worker's part of a tensor. Its local array is the product of the region's runs.

    A tensor of a micro-batch holds the rows of the whole batch from `first_row` on.
    """

    tensor: Tensor
    region: Region
    first_row: int = 0


def stream(seed: int, name: str, iteration: int = 0) -> np.uint64:
    """Return the 64-bit stream number of a tensor. `iteration` distinguishes the batches of an input."""
    digest = blake2b(f"{seed}/{iteration}/{name}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def rows(tile: Tile) -> NDArray[np.int64]:
    """Return the indices of a tile's rows in the batch; in the whole batch if the tensor belongs to a micro-batch."""
    return indices(tile.region[0]) + tile.first_row


def indices(runs: Runs) -> NDArray[np.int64]:
    """Return the global indices of one dimension's runs, in local order."""
    return np.concatenate([np.arange(0), *(np.arange(start, stop) for start, stop in runs)])


def mixed(words: Array) -> Array:
    """Apply the finalizer of splitmix64 to an array of uint64, in place."""
    words ^= words >> np.uint64(30)
    words *= FIRST_FACTOR
    words ^= words >> np.uint64(27)
    words *= SECOND_FACTOR
    words ^= words >> np.uint64(31)
    return words


def hashed(positions: Array, number: np.uint64) -> Array:
    """Return 64 bits for each global element position (uint64, not rank 0). Overwrites `positions`."""
    positions += np.uint64(1)
    positions *= GOLDEN
    positions += number
    return mixed(positions)


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield boxes of at most BLOCK_ELEMENTS elements that tile an array, halving the first possible dimension."""
    pending = [tuple(slice(0, extent) for extent in shape)]
    while pending:
        box = pending.pop()
        lengths = [part.stop - part.start for part in box]
        if np.prod(lengths, dtype=np.int64) <= BLOCK_ELEMENTS:
            yield box
            continue
        axis = next(axis for axis, extent in enumerate(lengths) if extent > 1)
        middle = box[axis].start + lengths[axis] // 2
        halves = slice(middle, box[axis].stop), slice(box[axis].start, middle)
        pending.extend((*box[:axis], half, *box[axis + 1 :]) for half in halves)


def positions(xp: ArrayModule, shape: tuple[int, ...], axes: list[Array]) -> Array:
    """Return row-major positions of the product of per-axis indices in a tensor of `shape`.

    The result is never rank 0.
    """
    total = xp.zeros((1,) * max(1, len(shape)), np.uint64)
    stride = 1
    for axis in reversed(range(len(shape))):
        along = [1] * len(shape)
        along[axis] = -1
        total = total + (axes[axis] * np.uint64(stride)).reshape(along)
        stride *= shape[axis]
    return total


def _uniform(bits: Array, dtype: str, init: Init) -> Array:
    # The top 24 (53) bits give u in [0, 1) exactly; 2u - 1 is also exact, so only the scaling rounds.
    kind, used = (np.float64, 53) if dtype == "float64" else (np.float32, 24)
    unit = (bits >> np.uint64(64 - used)).astype(kind)
    unit *= kind(2.0 ** (1 - used))
    unit -= kind(1)
    unit *= kind(init.scale)
    return unit


def _integers(bits: Array, dtype: str, init: Init) -> Array:
    return (((bits >> np.uint64(32)) * np.uint64(init.below)) >> np.uint64(32)).astype(dtype)


RANDOM: Mapping[str, Callable[[Array, str, Init], Array]] = {"uniform": _uniform, "integers": _integers}
CONSTANT: Mapping[str, int] = {"zeros": 0, "ones": 1}


def fill(xp: ArrayModule, out: Array, tile: Tile, number: np.uint64) -> None:
    """Write a tile's initial values to `out`, the local array.

    `number` comes from `stream`. Raises ValueError for an initial value that is not hashed (data).
    """
    tensor, init = tile.tensor, tile.tensor.init
    if not out.size:
        return
    if init is not None and init.kind == "values":
        out[...] = xp.asarray(array_of(tensor)[np.ix_(*map(indices, tile.region))])
        return
    if init is not None and init.kind in CONSTANT:
        out.fill(CONSTANT[init.kind])
        return
    if init is None or init.kind not in RANDOM:
        known = ", ".join((*CONSTANT, *RANDOM, "values"))
        raise ValueError(f"tensor {tensor.name}: expected an initial value of kind {known}, found {init}")
    if init.kind == "integers" and not 0 < init.below < 2**31:
        raise ValueError(f"tensor {tensor.name}: expected integers below 1 .. 2**31 - 1, found {init.below}")
    along = [rows(tile), *map(indices, tile.region[1:])] if tile.region else []
    axes = [xp.asarray(along_axis.astype(np.uint64)) for along_axis in along]
    for box in blocks(local_shape(tile.region)):
        places = positions(xp, tensor.shape, [axis[part] for axis, part in zip(axes, box, strict=True)])
        values = RANDOM[init.kind](hashed(places, number), tensor.dtype, init)
        out[(*box, ...)] = values.reshape([part.stop - part.start for part in box])


# Kernels in CUDA C++: their source, with a shared header, compiled when a process first launches one.


NUMBERS = Path(__file__).with_name("numbers.cuh")
OPTIONS = ("--std=c++17",)


def source_of(path: Path) -> str:
    """Return the source of a file of kernels, with the shared header."""
    return NUMBERS.read_text() + path.read_text()


@cache
def kernel_of(xp: ArrayModule, path: Path, name: str) -> Any:
    """Return a kernel of a file by name."""
    return xp.RawModule(code=source_of(path), options=OPTIONS).get_function(name)
