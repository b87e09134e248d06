"""The training graph: tensors, nodes and the loop's updates. Data only; `checking.py` validates it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tensor_partitioner.display import Shown

Value = bool | int | float | str | None | tuple["Value", ...] | Mapping[str, "Value"]

ROLES = ("input", "weight", "state", "buffer", "constant", "activation", "gradient", "loss")
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "bool": 1}
FLOATING = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Init:
    """Initial values of a tensor that no node produces.

    `kind` is "zeros", "ones", "uniform" (values in [-scale, scale) from the global hash), "integers" (0 <= value <
    below, from the global hash), "values" (given values, see `constants.py`) or "data" (from the data set). For labels,
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
