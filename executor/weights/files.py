"""Files of named arrays: their contents, and reading regions of them without the rest, if the format allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from executor.cluster import HostArray
from executor.npz import Npz
from executor.values import indices
from planner.errors import InputError
from planner.layout import Region, local_shape
from planner.layout.region import boxes, whole

CODES: Mapping[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""safetensors' names for NumPy's dtypes."""

Kind = tuple[tuple[int, ...], str]
"""An array's shape, and NumPy's name of its dtype."""


class WeightsError(InputError):
    """A file of weights does not fit a graph. The message says what was expected and found, and what to do."""


class InMemory:
    """Arrays of a mapping. A mapping that reads on access, such as a .npz file's, holds one array at a time."""

    def __init__(self, arrays: Mapping[str, HostArray]) -> None:
        self._arrays = arrays

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """Shape and dtype of every array, by name."""
        return {name: (array.shape, array.dtype.name) for name, array in self._arrays.items()}

    def read(self, name: str, region: Region) -> HostArray:
        """Return a region of an array as a local array."""
        array = self._arrays[name]
        return np.asarray(array[np.ix_(*map(indices, region))] if region else array)


class Safetensors:
    """A safetensors file. Only the requested parts are read."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: Any = safe_open(path, framework="np")
        except SafetensorError as error:
            raise WeightsError(f"{path}: expected a safetensors file: {error}") from error

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """Shape and dtype of every array, by name."""
        names = {code: dtype for dtype, code in CODES.items()}
        parts = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118  # not a mapping
        return {
            name: (tuple(part.get_shape()), names.get(part.get_dtype(), part.get_dtype()))
            for name, part in parts.items()
        }

    def read(self, name: str, region: Region) -> HostArray:
        """Return a region of an array as a local array."""
        shape, dtype = self.kinds[name]
        part, out = self._file.get_slice(name), np.empty(local_shape(region), dtype)
        for box in boxes(whole(shape), region, region):
            source: Any = tuple(slice(here, here + size) for here, _, size in box)
            target: Any = tuple(slice(there, there + size) for _, there, size in box)
            out[(*target, ...)] = part[(*source, ...)]
        return out


Arrays = InMemory | Safetensors

ANY_OTHER = "other"
"""Stands for all suffixes without a reader of their own."""

READERS: dict[str, Callable[[Path], Arrays]] = {".npz": lambda path: InMemory(Npz(path)), ".safetensors": Safetensors}
"""Openers of array files, by suffix. `executor.torch` adds one for all others, which are read as torch.save files."""


def open_arrays(path: Path) -> Arrays:
    """Open a file of arrays by its suffix. Raises InputError if it has another content, and OSError."""
    with path.open("rb"):  # an OSError names the file
        pass
    reader = READERS.get(path.suffix) or READERS.get(ANY_OTHER)
    if reader is None:
        raise WeightsError(f"{path}: expected .safetensors or .npz; others need import executor.torch")
    return reader(path)
