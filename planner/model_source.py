"""Where `plan` takes its graph from: the zoo, a graph.json, or a function in a Python file."""

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
from planner.graph.checking import check
from planner.graph.graph_json import load_graph
from planner.graph.ir import Graph
from planner.graph.optimizers import CONSTANTS, OF_GRADIENTS
from planner.models.options import Training
from planner.models.zoo import build, built_as_asked, is_zoo_name
from tensor_partitioner.display.progress import progress

_FUNCTION = r"(.+\.py):(\w+)"

_PUBLISHED = r"(?:timm|torchvision|hf):\S+"
"""Modules that packages of PyTorch publish; `hf:` is the zoo's where that has the kind."""

OF_MODULES = "micro_batches", "recompute"
"""Options that the import of a module of PyTorch takes where its function has no parameters for them."""

OF_OPTIMIZERS = ("optimizer", *CONSTANTS, *OF_GRADIENTS)
"""Those that it takes where the function returns no optimizer, too."""

NO_DEFAULTS: Mapping[str, object] = {}


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
    parameter dtype runs within autocast with dtype="mixed" or "mixed-float16", and as it is with "float32"; one whose
    function has none for micro_batches or recompute is imported with the samples of one, or computes activations
    again; and one that comes without an optimizer with that of the options. With opaque_unknown=True operators of
    PyTorch that the graph has none for run whole, by calling PyTorch.
    Raises GraphError naming the file or model and what is wrong, OSError where a file cannot be read.

    >>> import planner
    >>> graph = planner.model("mlp-2-16", batch=8)
    >>> sorted(graph.metrics)
    ['labels', 'logits', 'loss']
    """
    return model_and_options(source, NO_DEFAULTS, **options)[0]


def model_and_options(
    source: str, defaults: Mapping[str, object], **options: object
) -> tuple[Graph, dict[str, object]]:
    """Return the graph as `model` does, and the options that it was made with.

    Of a module of PyTorch without an optimizer those are `defaults`, too: its optimizer, and its precision where that
    is single.
    """
    if not isinstance(source, str):
        raise GraphError(f"expected a model's name, a graph.json or file.py:function, found {source!r}")
    match = re.fullmatch(_FUNCTION, source)
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
    if source.endswith(".py"):
        raise GraphError(f"{source}: expected {source}:FUNCTION, found no function's name")
    with progress(f"reading {source}", 1):
        return replace(load_graph(Path(source)), name=source), options


def function_of(source: str, **options: object) -> Callable[[], object]:
    """Return the function that path/to/file.py:function names, with parameters given; GraphError as `model`."""
    if (match := re.fullmatch(_FUNCTION, source)) is None:
        raise GraphError(f"expected path/to/file.py:function, found {source!r}")
    path, (function, _) = Path(match[1]), _function(Path(match[1]), match[2], options)
    return lambda: guarded(path, f"{match[2]}()", function)


def _function(path: Path, name: str, options: Mapping[str, object]) -> tuple[Callable[[], object], dict[str, object]]:
    """Return a function with its parameters given, and what the import of a module is given for which it has none."""
    function = getattr(load_file(path), name, None)
    if not callable(function):
        raise GraphError(f"{path}: expected a function {name!r}, found none")
    return _split(f"{path}:{name}", function, options)


def _split(
    source: str, function: Callable[..., object], options: Mapping[str, object]
) -> tuple[Callable[[], object], dict[str, object]]:
    """Give a function the options that it has parameters for; return it, and the others."""
    unknown = {option: options[option] for option in sorted(options.keys() - signature(function).parameters.keys())}
    of_module = {option: unknown.pop(option) for option in (*OF_MODULES, *OF_OPTIMIZERS) if option in unknown}
    if unknown.get("dtype") in {*MIXED, "float32"}:
        of_module["dtype"] = unknown.pop("dtype")
    if unknown:
        mixed = "; modules of PyTorch need none for --dtype mixed, within torch.autocast" if "dtype" in unknown else ""
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
    """Return what a function makes, of a module of PyTorch the graph, and the defaults that this was made with."""
    # A file that has no use for PyTorch has not loaded it, and what loads it here takes a second and 200 MB.
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, watch := _Watch())
        try:
            return _taking_none(function, function(), of_module), {}
        except _TorchWantedError:
            pass  # it is loaded below, so that the module is made without memory
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
    """Return a result that is no module; a GraphError where the function has no parameters for options."""
    if options:
        raise GraphError(parameters_expected(getattr(function, "func", function).__name__, options))
    return result


class _TorchWantedError(BaseException):
    """A function loads PyTorch; no ImportError, which it may handle."""


class _Watch(MetaPathFinder):
    """Raises an error where PyTorch is loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing."""
        if name == "torch":
            raise _TorchWantedError


def from_torch(module: object, inputs: Sequence[object], **options: object) -> Graph:
    """Return the training graph of a module of PyTorch; what `options` there are: `planner.pytorch.from_torch`.

    Raises a GraphError for what the graph has no operator for, and where PyTorch is not installed.
    """
    return cast(Graph, _of_pytorch("planner.pytorch").from_torch(module, inputs, **options))


def _of_pytorch(module: str) -> Any:
    """Load a module that needs PyTorch; a GraphError where that is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise GraphError("PyTorch is not installed: pip install 'tensor-partitioner[torch]'") from error
