"""The training graph: tensors, nodes, updates, given values and module entries. Data only; `infer.py` validates it."""

from __future__ import annotations

import binascii
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401 (makes bfloat16 a dtype of NumPy)
import numpy as np
from numpy.typing import NDArray

import tdl
from planner.errors import GraphError
from tensor_partitioner.display import Shown

Value = bool | int | float | str | None | tuple["Value", ...] | Mapping[str, "Value"]

ROLES = ("input", "weight", "state", "buffer", "constant", "activation", "gradient", "loss")
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "bool": 1}
FLOATING = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Init:
    """Initial values of a tensor that no node produces.

    `kind` is "zeros", "ones", "uniform" (values in [-scale, scale) from the global hash), "integers" (0 <= value <
    below, from the global hash), "values" (given values) or "data" (from the data set). For labels,
    `below` is the number of classes and `ignored` an additional value that they may hold.
    """

    kind: str
    scale: float = 0.0
    below: int = 0
    values: str = ""
    ignored: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array of the graph; `init` is None exactly if a node produces it.

    Tensors that no node produces have one of five roles: an "input" is given for every iteration, a "weight" is trained
    or frozen, a "state" belongs to the optimizer, a "buffer" belongs to the model and is not trained, and a "constant"
    never changes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    init: Init | None = None

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * ITEM_BYTES[self.dtype]

    @property
    def is_parameter(self) -> bool:
        """True for a weight that no node produces."""
        return self.role == "weight" and self.init is not None


@dataclass(frozen=True, slots=True)
class Node:
    """One operator applied to tensors.

    `forward` names the forward node that a backward node differentiates, or that a node recomputes. `unroll` is (cell
    node, timestep) for a node of an unrolled recurrent cell; a backward node has that of its forward node. Both are
    hints for coarsening. `attrs` holds plain values; the attribute `extents` gives the extents of index variables that
    shapes do not determine. `line` is the line of user code that created the node, as file:line, if known.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Value] = field(default_factory=dict)
    forward: str | None = None
    unroll: tuple[str, int] | None = None
    line: str = field(default="", compare=False)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return the node with its tensors renamed."""
    if names.keys().isdisjoint((*node.inputs, *node.outputs)):
        return node
    inputs = tuple(names.get(name, name) for name in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(name, name) for name in node.outputs))


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the state dict of the imported module: a parameter or a buffer.

    `tensor` is the graph's tensor with the same elements in the same order, perhaps with finer dimensions (see
    `planner/layout/region.py`); several names of one weight share a tensor. It is None if the graph has no use for the
    entry, or holds its content in nodes; `digest` then identifies the content if it is known (see `content_digest`).
    `counts` is the increment per iteration of an entry that counts iterations. `dtype` is the module's dtype, which may
    be a 64-bit integer.
    """

    tensor: str | None
    shape: tuple[int, ...]
    dtype: str
    digest: str = ""
    counts: int = 0


@dataclass(frozen=True, slots=True)
class Graph(Shown):
    """A training iteration: nodes in an executable order.

    - `updates` maps each tensor that the iteration changes (weights, optimizer state) to its replacement.
    - `metrics` names the tensors reported while training ("loss", "logits", "labels").
    - `entries` are the state dict's entries of the imported module, by name.
    - `given` names the module's inputs and targets, including unused ones.
    - With several `micro_batches` the graph describes one of them, and the tensors `accumulated` are summed over all
      before anything reads them (see `micro_batches.py`).
    - `name` is shown to users.
    """

    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    updates: Mapping[str, str]
    metrics: Mapping[str, str]
    entries: Mapping[str, Entry] = field(default_factory=dict)
    given: tuple[str, ...] = field(default=(), kw_only=True)
    micro_batches: int = 1
    accumulated: tuple[str, ...] = ()
    name: str = field(default="", compare=False)

    def __repr__(self) -> str:
        named = f" {self.name}" if self.name else ""
        return f"<graph{named} of {len(self.nodes)} nodes and {len(self.tensors)} tensors>"


# Tensors with given values, stored in the graph itself as compressed text.
#
# The text is base64 of the zlib-compressed elements in row-major order, least significant byte first. Graphs are
# files that people read and send, so only small or regular tensors are stored this way (positions, masks, tables of
# relative positions). Weights are not constants.


Array = NDArray[Any]

MOST_CHARACTERS = 1 << 24
"""Largest number of characters for the values of one tensor."""


def values(array: Array) -> Init:
    """Return an Init that holds an array's values; raise GraphError for an unknown dtype or too many characters."""
    content = np.asarray(array)
    if content.dtype.name not in ITEM_BYTES:
        raise GraphError(f"values of dtype {content.dtype}: expected one of {', '.join(ITEM_BYTES)}")
    little = content.astype(content.dtype.newbyteorder("<")) if content.dtype.byteorder == ">" else content
    text = b64encode(zlib.compress(np.ascontiguousarray(little).tobytes(), 9)).decode()
    if len(text) > MOST_CHARACTERS:
        raise GraphError(
            f"values of shape {content.shape} take {len(text)} characters, more than {MOST_CHARACTERS}; "
            "compute them by operators, or make them an input or a weight"
        )
    return Init("values", values=text)


def array_of(tensor: Tensor) -> Array:
    """Return a tensor's initial values, read-only; raise GraphError if their number does not match its shape."""
    return _array(tensor.init.values if tensor.init else "", tensor.shape, tensor.dtype)


@lru_cache(maxsize=1 << 10)
def _array(text: str, shape: tuple[int, ...], dtype: str) -> Array:
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    if len(text) > MOST_CHARACTERS:
        raise GraphError(f"values of {len(text)} characters, expected at most {MOST_CHARACTERS}")
    try:
        # Limit the output, so that a small file cannot fill the memory.
        raw = zlib.decompressobj().decompress(b64decode(text, validate=True), nbytes + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise GraphError(f"values are not base64-encoded zlib data: {error}") from error
    if len(raw) != nbytes:
        size = f"{len(raw)}" if len(raw) < nbytes else "more"
        raise GraphError(f"values should be {nbytes} bytes for shape {shape} of {dtype}, found {size}")
    return np.frombuffer(raw, dtype).reshape(shape)


# Entries of a module's state dict, and the graph tensors that hold their elements.


def entries_of(graph: Graph) -> Mapping[str, Entry]:
    """Return a graph's entries; for a graph that was not imported, its weights under their own names."""
    weights = (tensor for tensor in graph.tensors.values() if tensor.is_parameter)
    return graph.entries or {tensor.name: Entry(tensor.name, tensor.shape, tensor.dtype) for tensor in weights}


def content_digest(content: NDArray[np.generic]) -> str:
    """Return a digest of an array's contents."""
    return sha256(np.ascontiguousarray(content).tobytes()).hexdigest()


def groups(coarse: Sequence[int], fine: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Return, for each dimension of `coarse`, the dimensions of `fine` that it spans; None if the shapes do not match.

    The elements of both shapes lie in the same order. Every dimension of `fine` is in one group; a dimension of extent
    1 may be in any group.
    """
    axes_by_dimension: list[list[int]] = []
    at = 0
    for extent in coarse:
        axes: list[int] = []
        while at < len(fine) and (prod(fine[axis] for axis in axes) < extent or (not axes and fine[at] == 1)):
            axes.append(at)
            at += 1
        axes_by_dimension.append(axes)
    if axes_by_dimension:
        axes_by_dimension[-1] += range(at, len(fine))
    elif fine:
        return None
    fits = all(
        prod(fine[axis] for axis in axes) == extent for axes, extent in zip(axes_by_dimension, coarse, strict=True)
    )
    return tuple(map(tuple, axes_by_dimension)) if fits else None


# Which tensors depend on the samples of a batch.


CONSTANT = ("zeros", "ones")


def depending_on_samples(tensors: Mapping[str, Tensor], nodes: Iterable[Node], sums: Collection[str] = ()) -> set[str]:
    """Return inputs that are not constant, and everything that nodes, in executable order, compute from them.

    Tensors that depend on samples only through the `sums` over all of them are excluded, and so are the sums. A node
    that draws random numbers for the gradient of a sample's element depends on the sample, regardless of the arriving
    gradient.
    """
    names = {name for name, tensor in tensors.items() if holds_samples(tensor)}
    drawing: set[str] = set()
    for node in nodes:
        if not names.isdisjoint(node.inputs) or node.forward in drawing:
            names.update(name for name in node.outputs if name not in sums)
            if "row" in tdl.catalog[node.op].random_keys:
                drawing.add(node.name)
    return names


def holds_samples(tensor: Tensor) -> bool:
    """Return True if a tensor's rows are samples of the batch or of a micro-batch."""
    init = tensor.init
    return tensor.role == "input" and init is not None and init.kind not in CONSTANT and bool(tensor.shape)
