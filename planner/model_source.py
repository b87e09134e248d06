"""Where `plan` takes its graph from: the zoo, a graph.json, or a function in a Python file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import cast

from planner.errors import GraphError
from planner.extensions import guarded, load_file
from planner.graph.build import MIXED
from planner.graph.checking import check
from planner.graph.graph_json import load_graph
from planner.graph.ir import Graph
from planner.models.zoo import build, built_as_asked
from tensor_partitioner.display.progress import progress

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
    (batch=128), or parameters of the function; a graph.json takes none. A module of PyTorch whose function has no
    parameter dtype runs within autocast with dtype="mixed" or "mixed-float16". With opaque_unknown=True operators of
    PyTorch that the graph has none for run whole, by calling PyTorch. Raises GraphError naming the file or model and
    what is wrong, OSError where a file cannot be read.

    >>> import planner
    >>> graph = planner.model("mlp-2-16", batch=8)
    >>> sorted(graph.metrics)
    ['labels', 'logits', 'loss']
    """
    if not isinstance(source, str):
        raise GraphError(f"expected a model's name, a graph.json or file.py:function, found {source!r}")
    match = re.fullmatch(_FUNCTION, source)
    opaque_unknown = bool(options.pop("opaque_unknown", False))
    if opaque_unknown and match is None:
        raise GraphError(f"{source}: expected file.py:function, whose module of PyTorch may have unknown operators")
    if not source_files(source):
        return replace(build(source, **options), name=source)
    if match is not None:
        with progress(f"importing {source}", 1):
            return replace(_from_function(Path(match[1]), match[2], options, opaque_unknown), name=source)
    if options:
        raise GraphError(f"{source}: a saved graph has no model options, found {_dashed(options)}")
    if source.endswith(".py"):
        raise GraphError(f"{source}: expected {source}:FUNCTION, found no function's name")
    with progress(f"reading {source}", 1):
        return replace(load_graph(Path(source)), name=source)


def _dashed(options: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in options)


def function_of(source: str, **options: object) -> Callable[[], object]:
    """Return the function that path/to/file.py:function names, with parameters given; GraphError as `model`."""
    if (match := re.fullmatch(_FUNCTION, source)) is None:
        raise GraphError(f"expected path/to/file.py:function, found {source!r}")
    path, (function, _) = Path(match[1]), _function(Path(match[1]), match[2], options)
    return lambda: guarded(path, f"{match[2]}()", function)


def _function(path: Path, name: str, options: Mapping[str, object]) -> tuple[Callable[[], object], str | None]:
    """Return a function with its parameters given, and the mixed precision of a module for which it has none."""
    function = getattr(load_file(path), name, None)
    if not callable(function):
        raise GraphError(f"{path}: expected a function {name!r}, found none")
    unknown = {option: options[option] for option in sorted(options.keys() - signature(function).parameters.keys())}
    precision = str(unknown.pop("dtype")) if unknown.get("dtype") in MIXED and "torch" in sys.modules else None
    if unknown:
        mixed = "; modules of PyTorch need none for --dtype mixed, within torch.autocast" if "dtype" in unknown else ""
        raise GraphError(
            f"{path}:{name}: expected a function with parameters for {_dashed(unknown)}, as in "
            f"def {name}({', '.join(f'{option}={value!r}' for option, value in unknown.items())}){mixed}"
        )
    taken = {option: value for option, value in options.items() if option != "dtype" or precision is None}
    return partial(function, **taken), precision


def _from_function(path: Path, name: str, options: Mapping[str, object], opaque_unknown: bool) -> Graph:
    function, precision = _function(path, name, options)
    graph = guarded(path, f"{name}()", lambda: _made(function, opaque_unknown, precision))
    if not isinstance(graph, Graph):
        raise GraphError(
            f"{path}:{name}: expected a function that returns a Graph, or a module of PyTorch with example inputs, "
            f"got {type(graph).__name__}"
        )
    try:
        check(graph)
    except GraphError as error:
        raise GraphError(f"{path}:{name}: {error}") from error
    return built_as_asked(f"{path}:{name}", graph, options) if "micro_batches" in options else graph


def _made(function: Callable[[], object], opaque_unknown: bool, precision: str | None) -> object:
    """Return what a function makes; of a module of PyTorch the graph, in a mixed precision where one is given."""
    # A file that has no use for PyTorch has not loaded it, and what loads it here takes a second and 200 MB.
    if "torch" not in sys.modules:
        return function()
    return import_module("planner.pytorch").graph_of(function, opaque_unknown=opaque_unknown, precision=precision)


def from_torch(module: object, inputs: Sequence[object], **options: object) -> Graph:
    """Return the training graph of a module of PyTorch; what `options` there are: `planner.pytorch.from_torch`.

    Raises a GraphError for what the graph has no operator for, and where PyTorch is not installed.
    """
    try:
        importer = import_module("planner.pytorch")
    except ModuleNotFoundError as error:
        raise GraphError("PyTorch is not installed: pip install 'tensor-partitioner[torch]'") from error
    return cast(Graph, importer.from_torch(module, inputs, **options))
