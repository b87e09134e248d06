"""Properties of trace nodes: operator, line and place in the module; and extensions by other packages."""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from planner.pytorch.private import schema_of

# Extensions of the import by other packages, through entry points, such as `extras/rare_operators`.


GROUP = "tensor_partitioner.pytorch"
"""The group of entry points that name an Extension."""

Functions = Mapping[Any, Callable[..., Any]]


class Extension(NamedTuple):
    """Tables of functions that extend those of the import.

    - `compositions`: by operator name, a function of other operators.
    - `functions`: by a PyTorch function, or the name of a private one, what is traced in its place.
    - `of_exports`: functions that rewrite what PyTorch exported.
    - `rewrites`: functions that rewrite a trace, or return False.
    - `around`: context managers around tracing.
    - `whole`: operators to call whole, with their gradients, by operator name; the values are not used.
    """

    compositions: Functions
    functions: Functions
    of_exports: Functions
    rewrites: Functions
    around: Functions
    whole: Mapping[str, Any] = MappingProxyType({})


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
    return "; for complex numbers, rare operators and data-dependent row selection: pip install extras/rare_operators"


@cache
def folders() -> tuple[str, ...]:
    """Return the folders of the extension packages, of PyTorch and of the import."""
    files = (import_module(name).__file__ for name in ("torch", __package__, *(e.module for e in _entries())))
    return tuple(str(Path(file).parent) + os.sep for file in files if file)


def _entries() -> EntryPoints:
    return entry_points(group=GROUP)


# Properties of trace nodes.


def packet(node: torch.fx.Node) -> str:
    """Return the name of a node's operator without overload and without "aten"; empty if it has none."""
    schema = schema_of(node.target)
    return schema.name.removeprefix("aten::") if schema else ""


def bound(node: torch.fx.Node) -> dict[str, Any]:
    """Return a node's arguments by the names of its operator's schema, with defaults filled in."""
    schema = schema_of(node.target)
    arguments = [] if schema is None else schema.arguments
    named = {argument.name: node.kwargs.get(argument.name, argument.default_value) for argument in arguments}
    return named | {argument.name: value for argument, value in zip(arguments, node.args, strict=False)}


def example(node: torch.fx.Node) -> Any:
    """Return a node's example result: a fake tensor or any other value."""
    return node.meta.get("val")


def leaves(result: object) -> list[object]:
    """Return an operator's result or results as a list."""
    return list(result) if isinstance(result, list | tuple) else [result]


def has_gradient(value: object) -> bool:
    """Return True for a tensor of real or complex numbers, which may have a gradient."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def is_random(node: torch.fx.Node) -> bool:
    """Return True for an operator that draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def place_of(node: torch.fx.Node) -> str:
    """Return the path of the submodule that a node belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(list(stack.values())[-1][0]) if stack else ""
    return re.sub(r"@\d+", "", path).removeprefix("module").removeprefix(".")


def line_of(node: torch.fx.Node) -> str:
    """Return the user's line that created a node, as file:line, or an empty string."""
    return _line_of(node.meta.get("stack_trace") or "")


def where(node: torch.fx.Node) -> str:
    """Return where the user finds a node: the line, else the module."""
    place = place_of(node)
    return line_of(node) or {"": "an unknown line", "_loss": "the loss"}.get(place, f"module {place}")


@lru_cache(maxsize=1 << 12)
def _line_of(trace: str) -> str:
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    lines = [spelled(file, int(line)) for file, line in frames if is_users(file)]
    return lines[-1] if lines else ""


def is_users(file: str) -> bool:
    """Return True if a file is not part of PyTorch, of the import or of its extensions, and exists."""
    return not file.startswith((*folders(), "<"))


def spelled(file: str, line: int) -> str:
    """Return a line of a file relative to the working directory or to the installed packages."""
    path = Path(file)
    if "site-packages" in path.parts:
        path = Path(*path.parts[path.parts.index("site-packages") + 1 :])
    elif path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line}"
