"""Data sets: the inputs of an iteration. Every worker creates only its region of the global batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from executor.data.base import (
    ROWS as ROWS,
    DataSet as DataSet,
    HeldOut as HeldOut,
    Random as Random,
    Shuffled as Shuffled,
    data_tensors as data_tensors,
    user_arrays,
)
from executor.data.bundled import digit_images, source_text
from planner.errors import DataError as DataError
from planner.graph.ir import Graph

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
