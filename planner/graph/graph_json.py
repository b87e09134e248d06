"""Graphs as plain data: the content of `graph.json` and of "graph" in `plan.json`.

{"tensors": {"w": {"shape": [4, 4], "dtype": "float32", "role": "weight", "init": {"kind": "uniform", "scale": 0.5}}},
"nodes": [{"name": "fc1", "op": "mm", "inputs": ["x", "w"], "outputs": ["fc1"], "attrs": {"transpose_b": true}}],
"updates": {"w": "w.next"}, "metrics": {"loss": "loss"}}

An imported graph also has "entries": {"fc.weight": {"tensor": "w", "shape": [4, 4], "dtype": "float32"}} and "given":
["x"]. A graph with several micro-batches has "micro_batches": 4, "accumulated": ["w.grad"]. Keys with their default
value (no init, attributes, hints or entries) are omitted. Tuples in attributes are JSON arrays. Infinite attributes,
for which JSON has no number, are {"float": "inf"} or {"float": "-inf"}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from planner.errors import GraphError
from planner.files import format_of, read_input
from planner.graph.infer import check
from planner.graph.ir import Entry, Graph, Init, Node, Tensor, Value
from planner.graph.opaque_ops import CALL, GRADIENT, register_called

T = TypeVar("T")

MOST_DIGITS = 20
"""Largest number of digits of an integer in a file; seeds have the most."""

INFINITE = "float"
"""Key of the object that represents an infinite number."""


class _GraphRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A JSON object with exactly the declared keys."""


class _Init(_GraphRecord):
    kind: str
    scale: float = 0.0
    below: int = 0
    values: str = ""
    ignored: int | None = None


class _Tensor(_GraphRecord):
    shape: tuple[int, ...]
    dtype: str
    role: str
    init: _Init | None = None


class _Node(_GraphRecord):
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any] = {}
    forward: str | None = None
    unroll: tuple[str, int] | None = None
    line: str = ""


class _Entry(_GraphRecord):
    tensor: str | None
    shape: tuple[int, ...]
    dtype: str
    digest: str = ""
    counts: int | bool = 0


class _Graph(_GraphRecord):
    tensors: dict[str, Any]
    nodes: list[Any]
    updates: dict[str, Any]
    metrics: dict[str, Any]
    entries: dict[str, Any] = {}
    micro_batches: Annotated[int, msgspec.Meta(ge=1)] = 1
    accumulated: tuple[str, ...] = ()
    given: tuple[str, ...] = ()


def to_data(graph: Graph) -> dict[str, Any]:
    """Return the graph as dicts, lists, strings and numbers."""
    record = _Graph(
        {name: msgspec.convert(tensor, _Tensor, from_attributes=True) for name, tensor in graph.tensors.items()},
        [_Node(n.name, n.op, n.inputs, n.outputs, _plain(n.attrs), n.forward, n.unroll, n.line) for n in graph.nodes],
        dict(graph.updates),
        dict(graph.metrics),
        {name: msgspec.convert(entry, _Entry, from_attributes=True) for name, entry in graph.entries.items()},
        graph.micro_batches,
        graph.accumulated,
        graph.given,
    )
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return data


def from_data(data: object, path: str = "$") -> Graph:
    """Return the checked graph that `to_data` converted to `data`.

    Raises GraphError with the JSON path (under `path`) of anything missing, unknown or of a wrong type, and for
    everything that `check` rejects.
    """
    outer = _convert(data, _Graph, path)
    tensors = {name: _tensor(name, tensor, f"{path}.tensors.{name}") for name, tensor in outer.tensors.items()}
    nodes = [_node(node, f"{path}.nodes[{number}]") for number, node in enumerate(outer.nodes)]
    if any(node.op in (CALL, GRADIENT) for node in nodes):
        register_called()
    updates, metrics = _names(outer.updates, f"{path}.updates"), _names(outer.metrics, f"{path}.metrics")
    entries = {
        name: Entry(**msgspec.structs.asdict(_convert(entry, _Entry, f"{path}.entries.{name}")))
        for name, entry in outer.entries.items()
    }
    graph = Graph(
        tensors,
        tuple(nodes),
        updates,
        metrics,
        entries,
        micro_batches=outer.micro_batches,
        accumulated=outer.accumulated,
        given=outer.given,
    )
    try:
        check(graph)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error
    return graph


def load_graph(file: Path) -> Graph:
    """Read a graph.json.

    Raise GraphError, with the file's name, if it is malformed, and OSError if it is unreadable.
    """
    content = read_input(file)
    if file_format := format_of(content):
        raise GraphError(f"{file}: expected a plan or a graph, found a file of format {file_format!r}")
    try:
        return from_data(read_json(content))
    except GraphError as error:
        raise GraphError(f"{file}: {error}") from error


def _convert(data: object, kind: type[T], path: str) -> T:
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        message, _, inner = str(error).partition(" - at `")
        raise GraphError(f"{path}{inner.rstrip('`').removeprefix('$')}: {message[:1].lower()}{message[1:]}") from error


def read_json(content: bytes) -> Any:
    """Return plain data.

    Raise GraphError if it is not JSON, nested too deeply, or has a number with too many digits.
    """
    try:
        return json.loads(content, object_pairs_hook=_object, parse_int=_integer)
    except RecursionError as error:
        raise GraphError("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise GraphError(f"not JSON: {error}") from error
    except UnicodeError as error:
        raise GraphError("not JSON: not UTF-8 text") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's pairs as a dict; raise GraphError for a key that occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise GraphError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in one object")
    for text in (*content, *(value for value in content.values() if isinstance(value, str))):
        text.encode()  # JSON can express half of a surrogate pair, which is not text
    return content


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise GraphError(f"numbers may have at most {MOST_DIGITS} digits, found {digits[:MOST_DIGITS]}...")
    return int(digits)


def _names(record: Mapping[str, object], path: str) -> dict[str, str]:
    return {key: _convert(name, str, f"{path}.{key}") for key, name in record.items()}


def _tensor(name: str, data: object, path: str) -> Tensor:
    record = _convert(data, _Tensor, path)
    init = None if record.init is None else Init(**msgspec.structs.asdict(record.init))
    return Tensor(name, record.shape, record.dtype, record.role, init)


def _node(data: object, path: str) -> Node:
    record = _convert(data, _Node, path)
    attrs = {name: _from_plain(value, f"{path}.attrs.{name}") for name, value in record.attrs.items()}
    return Node(**msgspec.structs.asdict(record) | {"attrs": attrs})


def _plain(value: Any) -> Any:
    """Return an attribute's value as JSON data."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return {INFINITE: str(value)} if isinstance(value, float) and math.isinf(value) else value


def _from_plain(value: object, path: str) -> Value:
    if isinstance(value, dict) and value.keys() == {INFINITE} and value[INFINITE] in ("inf", "-inf"):
        return float(value[INFINITE])
    if isinstance(value, list):
        return tuple(_from_plain(item, f"{path}[{number}]") for number, item in enumerate(value))
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            raise GraphError(f"{path}: expected string keys, found {list(value)}")
        return {key: _from_plain(item, f"{path}.{key}") for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise GraphError(f"{path}: expected a number, string, null, array or object, found {type(value).__name__}")
