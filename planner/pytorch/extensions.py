"""Extensions of the import by other packages, through entry points, such as `extras/rare_operators`."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any, NamedTuple

GROUP = "tensor_partitioner.pytorch"
"""The group of entry points that name an Extension."""

Functions = Mapping[Any, Callable[..., Any]]


class Extension(NamedTuple):
    """Tables of functions that extend those of the import.

    - `compositions`: by operator name, a function of other operators.
    - `functions`: by a PyTorch function, or the name of a private one, what is traced in its place.
    - `of_complex_numbers`: by operator name, a function of ComplexTensor.
    - `rewrites`: functions that rewrite a trace, or return False.
    - `around`: context managers around tracing.
    """

    compositions: Functions
    functions: Functions
    of_complex_numbers: Functions
    rewrites: Functions
    around: Functions


@cache
def extension() -> Extension:
    """Return the combined tables of all installed packages."""
    loaded: list[Extension] = [entry.load() for entry in _entries()]
    nothing = Extension({}, {}, {}, {}, {})
    return Extension(*(ChainMap(*map(dict, tables)) for tables in zip(nothing, *loaded, strict=True)))


def advice() -> str:
    """Return what to install for a missing operator; an empty string if it is installed."""
    if any(entry.name == "rare_operators" for entry in _entries()):
        return ""
    return "; for rare operators and data-dependent row selection: pip install extras/rare_operators"


@cache
def folders() -> tuple[str, ...]:
    """Return the folders of the extension packages, of PyTorch and of the import."""
    files = (import_module(name).__file__ for name in ("torch", __package__, *(e.module for e in _entries())))
    return tuple(str(Path(file).parent) + os.sep for file in files if file)


def _entries() -> EntryPoints:
    return entry_points(group=GROUP)
