"""User-defined operators: Python files that register descriptions, gradient rules and more in the project's tables.

Such a file runs only if the user names it, with `--operators` or as MODEL. Loading a plan executes no code.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import tdl
from planner.errors import GraphError
from planner.failures import needed_extra
from planner.files import read_input
from planner.graph.rules import RULES, Rule

T = TypeVar("T")

_loaded: dict[Path, tuple[bytes, ModuleType]] = {}


def load_operators(paths: Iterable[str | Path]) -> None:
    """Run files that register operators.

    Raises InputError that names the missing file, or the file and line that failed.
    """
    for path in [paths] if isinstance(paths, str | Path) else paths:
        load_file(Path(path))


def load_file(path: Path) -> ModuleType:
    """Run a Python file once and return it as a module. Raises GraphError that names the line if it fails.

    The file's directory is added to the import path, and other files can import it by name.
    """
    source, key = read_input(path), path.resolve()
    if key in _loaded and _loaded[key][0] == source:
        return _loaded[key][1]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise GraphError(f"{path}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.setdefault(path.stem, module)
    folder = str(key.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        guarded(path, "loading", lambda: exec(compile(source, path, "exec"), module.__dict__))
    except GraphError:
        if known is module:
            del sys.modules[path.stem]
        raise
    _loaded[key] = source, module
    return module


def guarded(path: Path, doing: str, action: Callable[[], T]) -> T:
    """Call a function of the user. Turn anything it raises into a GraphError that names the line of the file."""
    try:
        return action()
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
        where = f"{path}:{line}" if line else str(path)
        reason = str(error) if isinstance(error, GraphError | tdl.TDLError) else f"{type(error).__name__}: {error}"
        raise GraphError(f"{where}: {doing}: {reason}{needed_extra(error)}") from error


def register_in(table: dict[str, T], what: str, name: str) -> Callable[[T], T]:
    """Return a decorator that adds a function to a table, under the name of an operator of the catalog.

    Raises TDLError if the catalog has no such operator, or if the table already has an entry for it.
    """
    if not isinstance(name, str):
        raise tdl.TDLError(f"expected the name of an operator to register a {what} for, found {name!r}")
    if name not in tdl.catalog:
        raise tdl.TDLError(
            f"{name}: no operator of this name is in the catalog; register its description before a {what}"
        )
    if name in {*table}:
        raise tdl.TDLError(f"{name}: name clash: the operator already has a {what}")
    return register_named(table, what, name)


def register_named(table: dict[str, T], what: str, name: str) -> Callable[[T], T]:
    """Return a decorator that adds an entry to a table by name. Raises TDLError if the name is taken."""
    if not isinstance(name, str):
        raise tdl.TDLError(f"expected the name of a {what} to register, found {name!r}")
    if name in {*table}:
        raise tdl.TDLError(f"{name}: name clash: a {what} of this name already exists")

    def enter(entry: T) -> T:
        table[name] = entry
        return entry

    return enter


def gradient(name: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as an operator's gradient rule. Raises TDLError if it already has one."""
    return register_in(RULES, "gradient rule", name)


def dashed(options: Iterable[str]) -> str:
    """Return options spelled as on the command line, separated by commas."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in options)


def parameters_expected(name: str, options: Mapping[str, object]) -> str:
    """Return an error text: the user's function lacks parameters for options; with an example of what to write."""
    example = ", ".join(f"{option}={value!r}" for option, value in options.items())
    return f"expected a function with parameters for {dashed(options)}, as in def {name}({example})"
