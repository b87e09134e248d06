"""Where `plan` gets its graph: the zoo, a graph.json, or a function in a Python file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from inspect import signature
from pathlib import Path
from typing import Any, cast

from planner.errors import GraphError
from planner.extensions import dashed, guarded, load_file, parameters_expected
from planner.graph.build import MIXED
from planner.graph.graph_json import load_graph
from planner.graph.infer import check
from planner.graph.ir import Graph
from planner.graph.optimizers import CONSTANTS, OF_GRADIENTS
from planner.models.options import Training
from planner.models.zoo import build, built_as_asked, is_zoo_name
from tensor_partitioner.display import progress

_FUNCTION = r"(.+\.py):(\w+)"

_PUBLISHED = r"(?:timm|torchvision|hf):\S+"
"""Modules that PyTorch packages publish. `hf:` names the zoo's model if the zoo has that kind."""

OF_MODULES = "micro_batches", "recompute"
"""Options passed to the import of a PyTorch module if its function has no parameters for them."""

OF_OPTIMIZERS = ("optimizer", *CONSTANTS, *OF_GRADIENTS)
"""Further options of the import, if the function returns no optimizer."""

NO_DEFAULTS: Mapping[str, object] = {}


def source_files(source: str) -> tuple[Path, ...]:
    """Return the file that a model's source names, or an empty tuple."""
    if (match := _function_named(source)) is not None:
        return (Path(match[1]),)
    return (Path(source),) if source.endswith(".json") else ()


def _function_named(source: str) -> re.Match[str] | None:
    """Return the match of a source with its file and its function, which is `make` by default; None for another."""
    return re.fullmatch(_FUNCTION, f"{source}:make" if source.endswith(".py") else source)


def model(source: str, **options: object) -> Graph:
    """Return the checked training graph that `source` names.

    `source` is a name of the zoo, a graph.json, or path/to/file.py:function (by default `make`). `options` are those of
    the zoo's family (batch=128), or parameters of the function; a graph.json takes none. A PyTorch module whose
    function has no parameter `dtype` runs within autocast with dtype="mixed" or "mixed-float16", and unchanged with
    "float32". If the function has no parameter `micro_batches` or `recompute`, the import applies it: it takes the
    samples of one micro-batch, or recomputes activations. If the function returns no optimizer, the options define it.
    With opaque_unknown=True, PyTorch operators that the graph does not support run whole, by calling PyTorch.

    Raises GraphError that names the file or model and the problem, and OSError if a file cannot be read.

    >>> import planner
    >>> graph = planner.model("mlp-2-16", batch=8)
    >>> sorted(graph.metrics)
    ['labels', 'logits', 'loss']
    """
    return model_and_options(source, NO_DEFAULTS, **options)[0]


def model_and_options(
    source: str, defaults: Mapping[str, object], **options: object
) -> tuple[Graph, dict[str, object]]:
    """Return the graph as `model` does, and the options it was made with.

    For a PyTorch module without an optimizer these include `defaults`: its optimizer, and its precision if the module
    has single precision.
    """
    if not isinstance(source, str):
        raise GraphError(f"expected a model's name, a graph.json or file.py:function, found {source!r}")
    match = _function_named(source)
    opaque_unknown = bool(options.pop("opaque_unknown", False))
    if opaque_unknown and match is None:
        raise GraphError(f"{source}: expected file.py:function, whose module of PyTorch may have unknown operators")
    if is_zoo_name(source):
        return replace(build(source, **options), name=source), options
    if re.fullmatch(_PUBLISHED, source):
        function, of_module = _split(source, _of_pytorch("planner.pytorch.published").maker(source), options)
        with progress(f"importing {source}", 1):
            graph, used = _result_of(function, opaque_unknown, of_module, defaults)
            return replace(cast(Graph, graph), name=source), used | options
    if not source_files(source):
        return replace(build(source, **options), name=source), options
    if match is not None:
        with progress(f"importing {source}", 1):
            graph, used = _from_function(Path(match[1]), match[2], options, defaults, opaque_unknown)
            return replace(graph, name=source), used
    if options:
        raise GraphError(f"{source}: a saved graph has no model options, found {dashed(options)}")
    with progress(f"reading {source}", 1):
        return replace(load_graph(Path(source)), name=source), options


def function_of(source: str, **options: object) -> Callable[[], object]:
    """Return the function that path/to/file.py:function names, with its parameters bound.

    Raises GraphError as `model`.
    """
    if (match := _function_named(source)) is None:
        raise GraphError(f"expected path/to/file.py:function, found {source!r}")
    path, (function, _) = Path(match[1]), _function(Path(match[1]), match[2], options)
    return lambda: guarded(path, f"{match[2]}()", function)


def _function(path: Path, name: str, options: Mapping[str, object]) -> tuple[Callable[[], object], dict[str, object]]:
    """Return a function with its parameters bound, and the options left to the import of its module."""
    function = getattr(load_file(path), name, None)
    if not callable(function):
        raise GraphError(f"{path}: expected a function {name!r}, found none")
    return _split(f"{path}:{name}", function, options)


def _split(
    source: str, function: Callable[..., object], options: Mapping[str, object]
) -> tuple[Callable[[], object], dict[str, object]]:
    """Bind the options that a function has parameters for. Return the bound function and the other options."""
    unknown = {option: options[option] for option in sorted(options.keys() - signature(function).parameters.keys())}
    of_module = {option: unknown.pop(option) for option in (*OF_MODULES, *OF_OPTIMIZERS) if option in unknown}
    if unknown.get("dtype") in {*MIXED, "float32"}:
        of_module["dtype"] = unknown.pop("dtype")
    if unknown:
        mixed = "; PyTorch modules need none: --dtype mixed uses torch.autocast" if "dtype" in unknown else ""
        raise GraphError(f"{source}: {parameters_expected(source.rpartition(':')[2], unknown)}{mixed}")
    parameters = signature(function).parameters
    return partial(function, **{option: value for option, value in options.items() if option in parameters}), of_module


def _from_function(
    path: Path, name: str, options: dict[str, object], defaults: Mapping[str, object], opaque_unknown: bool
) -> tuple[Graph, dict[str, object]]:
    function, of_module = _function(path, name, options)
    graph, used = guarded(path, f"{name}()", lambda: _result_of(function, opaque_unknown, of_module, defaults))
    if not isinstance(graph, Graph):
        raise GraphError(
            f"{path}:{name}: expected a function that returns a Graph, or a module of PyTorch with example inputs, "
            f"got {type(graph).__name__}"
        )
    try:
        check(graph)
    except GraphError as error:
        raise GraphError(f"{path}:{name}: {error}") from error
    return built_as_asked(f"{path}:{name}", graph, options) if "micro_batches" in options else graph, {
        **used,
        **options,
    }


def _result_of(
    function: Callable[[], object],
    opaque_unknown: bool,
    of_module: Mapping[str, object],
    defaults: Mapping[str, object],
) -> tuple[object, dict[str, object]]:
    """Return what a function returns, with a PyTorch module turned into a graph, and the defaults that were used."""
    # A file that does not need PyTorch has not loaded it. Loading it here would take a second and 200 MB.
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, watch := _Watch())
        try:
            return _taking_none(function, function(), of_module), {}
        except _TorchWantedError:
            pass  # PyTorch is loaded below, so that the module is created without memory for its parameters
        finally:
            sys.meta_path.remove(watch)
    importer = import_module("planner.pytorch")
    result = importer.module_of(function)
    if not isinstance(result, importer.UserModel):
        return _taking_none(function, result, of_module), {}
    used: dict[str, object] = {}
    if result.optimizer is None:
        settled = {*signature(function).parameters, *of_module, *([] if importer.is_single(result) else ["dtype"])}
        used = {name: value for name, value in defaults.items() if name not in settled}
    given = {**of_module, **used}
    training = {name: given.pop(name) for name in OF_OPTIMIZERS if name in given}
    update = Training(**training).update if training else None  # type: ignore[arg-type]
    precision = given.pop("dtype", None)
    return importer.graph_of_model(
        result, opaque_unknown=opaque_unknown, precision=precision, optimizer=update, **given
    ), used


def _taking_none(function: Callable[[], object], result: object, options: Mapping[str, object]) -> object:
    """Return a result that is not a module.

    Raises GraphError if options are left that the function has no parameters for.
    """
    if options:
        raise GraphError(parameters_expected(getattr(function, "func", function).__name__, options))
    return result


class _TorchWantedError(BaseException):
    """A function loads PyTorch. Not an ImportError, because the function may catch that."""


class _Watch(MetaPathFinder):
    """An import finder that raises an error when PyTorch is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Return None, except for `torch`: raise `_TorchWantedError`."""
        if name == "torch":
            raise _TorchWantedError


def from_torch(module: object, inputs: Sequence[object] | Mapping[str, object], **options: object) -> Graph:
    """Return the training graph of a PyTorch module. See `planner.pytorch.from_torch` for the options.

    Raises GraphError for an unknown option, if the graph has no operator for part of the module, or if PyTorch is not
    installed.
    """
    function = _of_pytorch("planner.pytorch").from_torch
    try:
        signature(function).bind(module, inputs, **options)
    except TypeError as error:
        raise GraphError(f"from_torch: {error}") from error
    return cast(Graph, function(module, inputs, **options))


def _of_pytorch(module: str) -> Any:
    """Import a module that needs PyTorch. Raises GraphError if PyTorch is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise GraphError("PyTorch is not installed: pip install 'tensor-partitioner[torch]'") from error
