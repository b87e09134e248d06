"""The training graph: tensors, nodes, the loop's updates. Data only; the checker is in `checking.py`."""

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
    """How a tensor that no node produces gets its first values.

    `kind` is "zeros", "ones", "uniform" (values in [-scale, scale) from the global hash), "integers" (0 <= value <
    below, from the global hash), "values" (these: see `constants.py`) or "data" (from the data set; for labels, `below`
    is the number of classes, and `ignored` the number that they may hold besides).
    """

    kind: str
    scale: float = 0.0
    below: int = 0
    values: str = ""
    ignored: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array of the graph; `init` is None exactly where a node produces it.

    Of what no node produces, an "input" is given for every iteration, a "weight" is trained or frozen, a "state" is the
    optimizer's, a "buffer" belongs to the model and is not trained, and a "constant" never changes.
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

    `forward` names the forward node that a backward node came from, or that is computed again; `unroll` is (cell node,
    timestep) for a node of an unrolled recurrent cell, and a backward node has its forward node's. Both are hints for
    coarsening. `attrs` holds plain values; the attribute `extents` gives the extents of index variables that shapes do
    not determine. `line` is the line of the user's source that asked for it, as file:line, where it is known.
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
    """The node with other names of its tensors."""
    if names.keys().isdisjoint((*node.inputs, *node.outputs)):
        return node
    inputs = tuple(names.get(name, name) for name in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(name, name) for name in node.outputs))


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the state dict of the module that a graph was imported from: a parameter or a buffer.

    `tensor` is the graph's that has its elements, in the same order, perhaps with finer dimensions (see
    `planner/layout/region.py`); several names of one weight name one tensor. None: the graph has no use for it, or
    holds its content in nodes; `digest` is then that of the content, where it is known (see `content_digest`), and
    `counts` is by how much it grows in an iteration, if it counts them. `dtype` is the module's: its whole numbers may
    have 64 bits.
    """

    tensor: str | None
    shape: tuple[int, ...]
    dtype: str
    digest: str = ""
    counts: int = 0


@dataclass(frozen=True, slots=True)
class Graph(Shown):
    """A training iteration: nodes in an order in which they can run.

    `updates` maps each tensor that the iteration changes (weights, optimizer state) to the tensor that replaces it;
    `metrics` names the tensors reported while training ("loss", "logits", "labels"). `entries` are those of the state
    dict of the module that the graph was imported from, by name, `given` the names of its inputs and targets, those too
    that nothing reads. Of several `micro_batches` it is one's; the tensors `accumulated` add up over all before
    anything reads them (see `micro_batches.py`). `name` is what people call it.
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
