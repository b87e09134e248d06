"""Kernels in CUDA C++: their source, with a shared header, compiled when a process first launches one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from executor.values import ArrayModule

NUMBERS = Path(__file__).with_name("numbers.cuh")
OPTIONS = ("--std=c++17",)


def source_of(path: Path) -> str:
    """Return the source of a file of kernels, with the shared header."""
    return NUMBERS.read_text() + path.read_text()


@cache
def kernel_of(xp: ArrayModule, path: Path, name: str) -> Any:
    """Return a kernel of a file by name."""
    return xp.RawModule(code=source_of(path), options=OPTIONS).get_function(name)
