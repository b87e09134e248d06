"""Where `plan` takes its graph from: the zoo, a graph.json, or a function in a Python file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from planner.errors import GraphError
from planner.extensions import guarded, load_file
from planner.graph.checking import check
from planner.graph.graph_json import load_graph
from planner.graph.ir import Graph
from planner.models import build

_FUNCTION = r"(.+\.py):(\w+)"


def source_files(source: str) -> tuple[Path, ...]:
    """Return the file that a model's source names, if it names one."""
    match = re.fullmatch(_FUNCTION, source)
    if match is None and not source.endswith((".json", ".py")):
        return ()
    return (Path(match[1] if match else source),)


def model(source: str, **options: object) -> Graph:
    """Return the checked training graph that `source` names.

    `source` is a name of the zoo, a graph.json, or path/to/file.py:function. `options` are those of the zoo's family
    (batch=128); only zoo models take any. Raises GraphError naming the file or model and what is wrong, OSError where a
    file cannot be read.
    """
    if not isinstance(source, str):
        raise GraphError(f"expected a model's name, a graph.json or file.py:function, found {source!r}")
    match = re.fullmatch(_FUNCTION, source)
    if not source_files(source):
        return replace(build(source, **options), name=source)
    if options:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise GraphError(f"{source}: a graph of one's own has no model options, found {given}")
    if match is not None:
        return replace(_from_function(Path(match[1]), match[2]), name=source)
    if source.endswith(".py"):
        raise GraphError(f"{source}: expected {source}:FUNCTION, found no function's name")
    return replace(load_graph(Path(source)), name=source)


def _from_function(path: Path, name: str) -> Graph:
    function = getattr(load_file(path), name, None)
    if not callable(function):
        raise GraphError(f"{path}: expected a function {name!r}, found none")
    graph = guarded(path, f"{name}()", function)
    if not isinstance(graph, Graph):
        raise GraphError(f"{path}:{name}: expected a function that returns a Graph, got {type(graph).__name__}")
    try:
        check(graph)
    except GraphError as error:
        raise GraphError(f"{path}:{name}: {error}") from error
    return graph
