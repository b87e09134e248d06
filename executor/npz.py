"""NumPy's .npz files. Arrays are read on access, and damage is reported in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from executor.cluster import HostArray
from planner.errors import InputError


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
