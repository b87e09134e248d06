"""Characters of the standard library's source, for networks that predict the next one."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from executor.data.base import DataError, HeldOut, Numbers, Shuffled, permutation, source_name, whole_inputs
from executor.values import Array, ArrayModule, Tile, indices, rows, stream
from planner.graph.facts import micro_batches
from planner.graph.ir import Graph, Tensor

CHARACTERS = 128
"""ASCII; anything else is read as a question mark."""

LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"})
"""Folders that not every installation has, or that hold other people's packages."""

HELD_OUT_PART = 10
"""One character of so many is held out, by whole files."""

HELD_OUT_CHARACTERS = 1 << 16
"""So many of them, evenly spaced, are predicted in an evaluation."""

Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Reading:
    """How inputs show a window: as tokens [n, length] and labels [n length], or at every timestep.

    Then `timesteps` numbers the inputs of each by name: one-hot vectors [n, width] and labels [n].
    """

    length: int
    timesteps: dict[str, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a text: `starts` says where; what is predicted of each character is the next."""

    codes: Codes
    starts: Numbers
    reading: Reading

    @property
    def count(self) -> int:
        """How many windows there are."""
        return len(self.starts)

    def write(self, xp: ArrayModule, out: Array, tile: Tile, chosen: Callable[[Numbers], Numbers]) -> None:
        """Write tokens, vectors or labels of a tile into its local array; see Samples."""
        tensor, length = tile.tensor, self.reading.length
        step = self.reading.timesteps.get(source_name(tensor))
        places = rows(tile)
        if len(tensor.shape) == 1:
            samples, within = np.divmod(places, length) if step is None else (places, step)
            codes = self.codes[self.starts[chosen(samples)] + within + 1]
        elif step is None:
            codes = self.codes[self.starts[chosen(places)][:, None] + indices(tile.region[1])]
        else:
            codes = self.codes[self.starts[chosen(places)] + step][:, None] == indices(tile.region[1])
        out[...] = xp.asarray(codes.astype(tensor.dtype))


def source_text(graph: Graph, seed: int) -> Shuffled:
    """Return windows of the standard library's source for a graph with tokens, or vectors at every timestep.

    Whole files are held out, a tenth of all characters. Raises DataError where the graph does not fit.
    """
    reading, samples = _fitting(graph)
    files = source_files(Path(sysconfig.get_path("stdlib")))
    order = permutation(stream(seed, "text/split"), len(files))
    sizes = np.cumsum([len(files[number]) for number in order])
    held = frozenset(order[: int(np.searchsorted(sizes, sizes[-1] // HELD_OUT_PART)) + 1].tolist())
    kept = [file for number, file in enumerate(files) if number not in held]
    training, held_out = np.concatenate(kept), np.concatenate([files[number] for number in sorted(held)])
    digest = sha256(training.data)
    digest.update(held_out.data)
    batch = samples * micro_batches(graph)
    return Shuffled(
        "text",
        Windows(training, windows(len(training), reading.length), reading),
        batch,
        seed,
        HeldOut(Windows(held_out, _spaced(len(held_out), reading.length, batch), reading), batch, "loss"),
        digest.hexdigest(),
    )


@lru_cache(1)
def source_files(folder: Path) -> tuple[Codes, ...]:
    """Return the characters of every file of Python below a folder, in the order of their names."""
    paths = (path for path in folder.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(folder).parts))
    contents = (np.frombuffer(path.read_bytes(), np.uint8) for path in sorted(paths))
    return tuple(np.where(codes < CHARACTERS, codes, ord("?")).astype(np.uint8) for codes in contents if len(codes))


def windows(characters: int, length: int) -> Numbers:
    """Return where windows start that lie side by side; each needs the character after it, too."""
    return np.arange(0, characters - length, length)


def _spaced(characters: int, length: int, batch: int) -> Numbers:
    """Return where the windows to evaluate start: evenly spaced, and as many as fill batches."""
    starts = windows(characters, length)
    wanted = max(batch, HELD_OUT_CHARACTERS // length // batch * batch)
    return starts[np.arange(wanted) * len(starts) // wanted]


def _fitting(graph: Graph) -> tuple[Reading, int]:
    """Return how a graph reads windows, and how many of them a micro-batch has."""
    inputs = whole_inputs(graph)
    labels = [tensor for tensor in inputs if tensor.dtype == "int32" and len(tensor.shape) == 1]
    shown = [tensor for tensor in inputs if tensor not in labels]
    reading = _of_tokens(shown, labels) or _of_vectors(shown, labels)
    if reading is None:
        shapes = ", ".join(f"{tensor.name} {tensor.dtype} {list(tensor.shape)}" for tensor in inputs) or "no inputs"
        raise DataError(
            "data set text: expected int32 tokens [n, s] and labels [n s], or vectors [n, width] and int32 labels [n] "
            f"at every timestep, found {shapes}"
        )
    for tensor in inputs:
        known = tensor.init.below if tensor.dtype == "int32" and tensor.init is not None else tensor.shape[-1]
        if 0 < known < CHARACTERS:
            raise DataError(
                f"data set text: expected {tensor.name} to tell {CHARACTERS} characters apart, found {known}"
            )
    return reading, shown[0].shape[0]


def _of_tokens(shown: list[Tensor], labels: list[Tensor]) -> Reading | None:
    if len(shown) != 1 or len(labels) != 1 or shown[0].dtype != "int32" or len(shown[0].shape) != 2:
        return None
    samples, length = shown[0].shape
    return Reading(length, {}) if labels[0].shape == (samples * length,) else None


def _of_vectors(shown: list[Tensor], labels: list[Tensor]) -> Reading | None:
    shapes = {tensor.shape for tensor in shown if tensor.dtype != "int32" and len(tensor.shape) == 2}
    samples = {shape[:1] for shape in shapes} | {tensor.shape for tensor in labels}
    if len(shown) != len(labels) or len(shapes) != 1 or len(samples) != 1:
        return None
    timesteps = {source_name(tensor): step for group in (shown, labels) for step, tensor in enumerate(group)}
    return Reading(len(labels), timesteps)
