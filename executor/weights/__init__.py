"""Weights in files: a module's state dict, checked against the entries of a graph, and read region by region.

The entries of a graph are in the plan (`planner.graph.ir`). Each rank reads its own part; `saving` writes it. Arrays of
NumPy's .npz files are read on access, and damage is reported in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from executor.cluster import HostArray
from executor.values import indices
from planner.errors import InputError
from planner.graph.ir import Entry, Graph, Tensor, content_digest, entries_of
from planner.layout import Region, local_shape
from planner.layout.region import boxes, coarser, whole

# Files of named arrays: their contents, and reading regions of them without the rest, if the format allows.


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


# Initial weights of a training.


SHOWN = 3
"""Number of names that an error lists."""


@dataclass(frozen=True)
class Weights:
    """The entries of a state dict that fit a graph. Errors name `where` they come from."""

    where: str
    arrays: Arrays
    graph: Graph

    @classmethod
    def of(cls, source: Path | Arrays | Mapping[str, HostArray], graph: Graph) -> Weights:
        """Open a file, or take arrays by name. Raises InputError if they do not fit the graph, and OSError."""
        if isinstance(source, Path):
            weights = cls(str(source), open_arrays(source), graph)
        else:
            weights = cls("weights", InMemory(source) if isinstance(source, Mapping) else source, graph)
        weights._check()
        return weights

    @cached_property
    def _names(self) -> Mapping[str, list[str]]:
        """The names of each tensor's entries. There are several if modules share a weight."""
        names: dict[str, list[str]] = {}
        for name, entry in entries_of(self.graph).items():
            if entry.tensor is not None:
                names.setdefault(entry.tensor, []).extend([name] if name in self.arrays.kinds else [])
        return names

    def __contains__(self, tensor: str) -> bool:
        """Return whether a tensor gets its initial value here."""
        return tensor in self._names

    def tile(self, tensor: Tensor, region: Region) -> HostArray:
        """Return a region of a tensor. Raises WeightsError if names that share it have different values."""
        first, *others = (self._read(name, tensor, region) for name in self._names[tensor.name])
        for other in others:
            if first.tobytes() != other.tobytes():
                names = " and ".join(self._names[tensor.name])
                raise WeightsError(f"{self.where}: {names}: expected equal values of a shared weight, found others")
        return first

    def content(self, name: str) -> HostArray | None:
        """Return an entry that no tensor holds; None if it is missing."""
        known = self.arrays.kinds.get(name)
        return None if known is None else self.arrays.read(name, whole(known[0]))

    def _read(self, name: str, tensor: Tensor, region: Region) -> HostArray:
        shape, dtype = self.arrays.kinds[name]
        values = self.arrays.read(name, coarser(region, tensor.shape, shape))
        converted = values.astype(tensor.dtype)
        if dtype != tensor.dtype and (converted != values).any():
            raise WeightsError(f"{self.where}: {name}: expected numbers that fit {tensor.dtype}, found others")
        return converted.reshape([sum(stop - start for start, stop in runs) for runs in region])

    def _check(self) -> None:
        entries, kinds = entries_of(self.graph), self.arrays.kinds
        missing = [
            next(name for name, entry in entries.items() if entry.tensor == tensor)
            for tensor, names in self._names.items()
            if not names
        ]
        if missing:
            raise WeightsError(
                f"{self.where}: expected an entry {_listed(missing)}, as the module's state dict has, found none among "
                f"{_listed(kinds)}: save it whole, as safetensors.torch.save_model(module, FILE) does"
            )
        if extra := [name for name in kinds if name not in entries]:
            raise WeightsError(
                f"{self.where}: expected only the entries of the planned module's state dict, found {_listed(extra)}: "
                "leave them out, or plan the module that has them"
            )
        for name, kind in kinds.items():
            self._check_entry(name, entries[name], *kind)

    def _check_entry(self, name: str, entry: Entry, shape: tuple[int, ...], dtype: str) -> None:
        where = f"{self.where}: {name}"
        if shape != entry.shape:
            raise WeightsError(
                f"{where}: expected shape {list(entry.shape)}, found {list(shape)}: another model was planned"
            )
        if dtype != entry.dtype:
            raise WeightsError(
                f"{where}: expected {entry.dtype}, found {dtype}: convert the file, or plan the module in {dtype}"
            )
        if entry.digest and content_digest(self.arrays.read(name, whole(shape))) != entry.digest:
            raise WeightsError(
                f"{where}: expected the content that the module had when it was planned, found another: load these "
                "weights and plan it again"
            )


def _listed(names: Iterable[str]) -> str:
    """Return some of the names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return f"{', '.join(every[:SHOWN]) or 'none'}{more}"


class Npz(Mapping[str, HostArray]):
    """The arrays of a .npz file. None is cached, and nothing in the file is executed.

    Raises OSError, or InputError if the file is damaged or not of this kind, on opening or when an array is read.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb"):  # an OSError names the file
            pass
        self._path = path
        with self._said():
            self._file = np.load(path, allow_pickle=False)
            if not isinstance(self._file, Mapping):
                raise TypeError("found a single array, as numpy.save writes it")

    def __getitem__(self, name: str) -> HostArray:
        if name not in self._file:
            raise KeyError(name)
        with self._said():
            array = self._file[name]
            if not isinstance(array, np.ndarray):
                raise TypeError(f"{name} is no array")
            return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # NumPy, zipfile and decompressors raise many kinds
            raise InputError(f"{self._path}: expected arrays as numpy.savez writes them: {error}") from error
