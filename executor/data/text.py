"""Characters of the standard library's source, for networks that predict the next one."""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from hashlib import sha256
from math import prod
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from executor.data.arrays import Arrays
from executor.data.base import HeldOut, Numbers, Shuffled, data_tensors, permutation
from executor.values import stream
from planner.errors import DataError
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


def source_text(graph: Graph, seed: int) -> Shuffled:
    """Return windows of the standard library's source for a graph with tokens, or vectors at every timestep.

    Whole files are held out, a tenth of all characters. Raises DataError where the graph does not fit.
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
    """Return windows [count, length + 1] as inputs: what is predicted of each character is the next.

    Tokens are [n, length] and labels as many; or there is an input of each for every timestep.
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
    """Return the characters of every file of Python below a folder, in the order of their names."""
    paths = (path for path in folder.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(folder).parts))
    contents = (np.frombuffer(path.read_bytes(), np.uint8) for path in sorted(paths))
    return tuple(np.where(codes < CHARACTERS, codes, ord("?")).astype(np.uint8) for codes in contents if len(codes))


def windows(codes: Codes, length: int) -> Codes:
    """Return windows that lie side by side, each with the character after it, too: [count, length + 1]."""
    return sliding_window_view(codes, length + 1)[::length]


def _spaced(count: int, length: int, batch: int) -> Numbers:
    """Return which windows are evaluated: evenly spaced, and as many as fill batches."""
    wanted = max(batch, HELD_OUT_CHARACTERS // length // batch * batch)
    spaced: Numbers = np.arange(wanted) * count // wanted
    return spaced


def _fitting(graph: Graph) -> tuple[list[Tensor], list[Tensor], int]:
    """Return the inputs that show windows, those that are labels, and how many characters a window has."""
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
    """Return how many tokens a window has; 0 where the inputs are others."""
    if len(shown) != 1 or len(labels) != 1 or shown[0].dtype != "int32" or len(shown[0].shape) != 2:
        return 0
    return shown[0].shape[1] if prod(labels[0].shape) == prod(shown[0].shape) else 0


def _timesteps(shown: list[Tensor], labels: list[Tensor]) -> int:
    """Return at how many timesteps there are vectors and labels; 0 where the inputs are others."""
    shapes = {tensor.shape for tensor in shown if tensor.dtype != "int32" and len(tensor.shape) == 2}
    samples = {shape[:1] for shape in shapes} | {tensor.shape for tensor in labels}
    return len(labels) if len(shown) == len(labels) and len(shapes) == len(samples) == 1 else 0
