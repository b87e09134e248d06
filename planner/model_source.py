"""Where `plan` takes its graph from: the zoo, a graph.json, or a function in a Python file."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planner.errors import GraphError
from planner.graph.check import check
from planner.graph.graph_json import load_graph
from planner.graph.ir import Graph
from planner.models import ModelOptions, build


def load_model(model: str, options: Mapping[str, Any]) -> Graph:
    """Return the checked training graph that MODEL names.

    `options` are fields of `ModelOptions` that were given; only zoo models take any. Raises GraphError naming the
    file or model and what is wrong, OSError where a file cannot be read.
    """
    match = re.fullmatch(r"(.+\.py):(\w+)", model)
    if match is None and not model.endswith((".json", ".py")):
        return build(model, ModelOptions(**options))
    if options:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise GraphError(f"{model}: a graph of one's own has no model options, found {given}")
    if match is not None:
        return _from_function(Path(match[1]), match[2])
    if model.endswith(".py"):
        raise GraphError(f"{model}: expected {model}:FUNCTION, found no function's name")
    return load_graph(Path(model))


def _from_function(path: Path, name: str) -> Graph:
    function = _function(path, name)
    graph = _guarded(path, f"{name}()", function)
    if not isinstance(graph, Graph):
        raise GraphError(f"{path}:{name}: expected a function that returns a Graph, got {type(graph).__name__}")
    try:
        check(graph)
    except GraphError as error:
        raise GraphError(f"{path}:{name}: {error}") from error
    return graph


def _function(path: Path, name: str) -> Callable[[], object]:
    source = path.read_bytes()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise GraphError(f"{path}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    _guarded(path, "loading", lambda: exec(compile(source, path, "exec"), module.__dict__))
    function = getattr(module, name, None)
    if not callable(function):
        raise GraphError(f"{path}: expected a function {name!r}, found none")
    return function  # type: ignore[no-any-return]


def _guarded(path: Path, doing: str, action: Callable[[], object]) -> object:
    """Turn whatever the user's code raises into a GraphError that names the line of their file."""
    try:
        return action()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
        where = f"{path}:{line}" if line else str(path)
        reason = str(error) if isinstance(error, GraphError) else f"{type(error).__name__}: {error}"
        raise GraphError(f"{where}: {doing}: {reason}") from error
