"""Graph construction: a node's output shapes come from its operator's description, their names from the node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate

from planner.errors import GraphError
from planner.graph.infer import check, infer
from planner.graph.ir import Array, Graph, Init, Node, Tensor, Value, renamed, values

DATA = Init("data")
ZEROS = Init("zeros")
ONES = Init("ones")

MIXED = {"mixed": "bfloat16", "mixed-float16": "float16"}
"""Dtype of activations by name of mixed precision; weights and optimizer state are then float32."""

MOST_NODES = 200_000
"""Largest number of nodes of a graph; planning one of this size takes minutes and gigabytes."""


@dataclass(frozen=True, slots=True)
class Average:
    """A state that starts as `init` and tracks a moving average of `factor` times a tensor.

    `momentum` is the weight of the newest value; 0.1 is PyTorch's default for batch norm.
    """

    state: str
    tensor: str
    init: Init
    factor: float = 1.0
    momentum: float = 0.1


@dataclass(frozen=True, slots=True)
class WrittenGradient:
    """A gradient written by the user, for consecutive nodes without gradients of their own.

    `nodes` compute `gradients`, the gradients of `operands`, from `arriving`, which stand for the gradients of
    `results`.
    """

    results: tuple[str, ...]
    operands: tuple[str, ...]
    arriving: tuple[str, ...]
    gradients: tuple[str, ...]
    nodes: tuple[Node, ...] = field(default=(), kw_only=True)


class GraphBuilder:
    """A graph under construction: add tensors and nodes in an executable order, then call `finish`.

    - `dtype` is the default of inputs, weights and states. With mixed precision (see MIXED) weights and states have
      `weight_dtype`, and nodes read 16-bit copies of weights (`copies`, by weight).
    - `changed` maps weights that the forward pass changes to their new values, which nodes read and the optimizer
      updates.
    - `frozen` weights are not trained. `flat` weights have a gradient of zeros if the loss does not depend on them.
    - `averages` are moving averages to add. `accumulated` tensors are summed over the `micro_batches`.
    - `reserved` names belong to the user: tensors added to a model get neither these names nor their prefixes.

    A node with one output gives that tensor the node's own name; a node with several appends ".0", ".1", ... unless
    names are given. Every method raises GraphError for a name already taken and for operands that do not fit the
    operator.

    >>> builder = GraphBuilder()
    >>> output = builder.apply("relu", builder.input("x", (8, 4)), name="y")
    >>> builder.finish({}, {}).tensors[output].shape
    (8, 4)
    """

    def __init__(self, dtype: str = "float32", reserved: Iterable[str] = ()) -> None:
        self.dtype = MIXED.get(dtype, dtype)
        self.weight_dtype = "float32" if dtype in MIXED else dtype
        self.reserved = {prefix for name in reserved for prefix in accumulate(name.split("."), "{}.{}".format)}
        self.copies: dict[str, str] = {}
        self.changed: dict[str, str] = {}
        self.frozen: set[str] = set()
        self.flat: set[str] = set()
        self.averages: list[Average] = []
        self.written: list[WrittenGradient] = []
        self.micro_batches = 1
        self.accumulated: list[str] = []
        self.tensors: dict[str, Tensor] = {}
        self.nodes: list[Node] = []
        self._node_names: set[str] = set()
        self._timestep: int | None = None

    @property
    def angle_dtype(self) -> str:
        """Dtype in which positions and angles are computed before they are cast: at least single precision."""
        return "float64" if self.dtype == "float64" else "float32"

    def input(self, name: str, shape: Sequence[int], init: Init = DATA, dtype: str | None = None) -> str:
        """Add a tensor provided by the data set (or by `init`); return its name."""
        return self.declare(Tensor(name, tuple(shape), dtype or self.dtype, "input", init))

    def integers(self, name: str, shape: Sequence[int], below: int) -> str:
        """Add an int32 input of shape [batch, ...] with values below `below`, such as classes; return its name."""
        return self.input(name, shape, Init("data", below=below), "int32")

    def weight(self, name: str, shape: Sequence[int], init: Init, *, frozen: bool = False) -> str:
        """Add a parameter, trained unless frozen; return the name that nodes read."""
        self.declare(Tensor(name, tuple(shape), self.weight_dtype, "weight", init))
        if frozen:
            self.frozen.add(name)
        if self.weight_dtype == self.dtype:
            return name
        copy = Node(f"{name}.{self.dtype}", "cast", (name,), (), {"dtype": self.dtype})
        (self.copies[name],) = self.emit(copy, "weight")
        return self.copies[name]

    def state(self, name: str, shape: Sequence[int], init: Init = ZEROS) -> str:
        """Add a tensor that the optimizer keeps between iterations; return its name."""
        return self.declare(Tensor(name, tuple(shape), self.weight_dtype, "state", init))

    def shared(self, tensor: Tensor) -> str:
        """Add a tensor shared by all its readers; return its name, which is extended if another tensor has it."""
        while tensor.name in self.reserved or self.tensors.get(tensor.name, tensor) != tensor:
            tensor = replace(tensor, name=f"{tensor.name}_")
        return tensor.name if tensor.name in self.tensors else self.declare(tensor)

    def constant(self, name: str, array: Array, role: str = "constant") -> str:
        """Add a tensor of given values (see `ir.py`), a "constant" or a "buffer"; return its name."""
        try:
            init = values(array)
        except GraphError as error:
            raise GraphError(f"tensor {name!r}: {error}") from error
        return self.declare(Tensor(name, array.shape, array.dtype.name, role, init))

    def cast(self, x: str, dtype: str, name: str) -> str:
        """Add a node that converts x to another dtype; return its output, or x if it has that dtype already."""
        if self._kind(x)[1] == dtype:
            return x
        return self.apply("cast", x, name=name, dtype=dtype)

    def apply(self, op: str, /, *inputs: str, name: str, role: str = "activation", **attrs: Value) -> str:
        """Add a node with one output, which has the node's name; return the output's name."""
        return self.emit(Node(self._name(name), op, inputs, (), attrs, unroll=self._unroll(name)), role)[0]

    def apply_all(
        self, op: str, /, *inputs: str, name: str, outputs: Sequence[str] = (), **attrs: Value
    ) -> tuple[str, ...]:
        """Add a node with several outputs; return their names."""
        names = tuple(self._name(output) for output in outputs)
        return self.emit(Node(self._name(name), op, inputs, names, attrs, unroll=self._unroll(name)))

    def emit(self, node: Node, role: str | Sequence[str] = "activation") -> tuple[str, ...]:
        """Add `node`; return its outputs' names, which derive from the node's if it has none.

        `role` is the role of all outputs, or one role per output.
        """
        where = f"node {node.name!r} ({node.op})"
        if node.name in self._node_names:
            raise GraphError(f"{where}: a node of that name exists already")
        if len(self.nodes) == MOST_NODES:
            raise too_many_nodes(where)
        try:
            kinds = infer(node.op, [self._kind(tensor) for tensor in node.inputs], node.attrs)
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
        outputs = node.outputs or _output_names(node.name, len(kinds))
        if len(outputs) != len(kinds):
            raise GraphError(f"{where}: expected {len(kinds)} outputs, found {len(outputs)}")
        roles = [role] * len(outputs) if isinstance(role, str) else role
        for output, output_role, (shape, dtype) in zip(outputs, roles, kinds, strict=True):
            self.declare(Tensor(output, shape, dtype, output_role))
        self._node_names.add(node.name)
        self.nodes.append(replace(node, outputs=outputs))
        return outputs

    @contextmanager
    def timestep(self, step: int) -> Iterator[None]:
        """Within this context, `apply` and `apply_all` append the timestep to names and set the nodes' `unroll`."""
        outer, self._timestep = self._timestep, step
        try:
            yield
        finally:
            self._timestep = outer

    def write_gradient(self, written: WrittenGradient) -> None:
        """Record a user-written gradient and take out its nodes until the gradients arrive.

        Its nodes are those that depend on the placeholders of arriving gradients, and those after these that only its
        gradients need, from what the forward pass keeps. What another node or the results read stays.
        """
        names = list(self.tensors)
        after, needed = set(names[min(map(names.index, written.arriving)) :]), set(written.gradients)
        following, kept = set(written.arriving), set(written.results)
        for node in self.nodes:
            if not following.isdisjoint(node.inputs):
                following.update(node.outputs)
        for node in reversed(self.nodes):
            computes = any(self.tensors[name].role == "activation" for name in node.inputs)
            moves = computes and after.issuperset(node.outputs) and kept.isdisjoint(node.outputs)
            if following.isdisjoint(node.outputs) and not (moves and not needed.isdisjoint(node.outputs)):
                kept.update(node.inputs)
            else:
                following.update(node.outputs)
                needed.update(node.inputs)
        nodes = [node for node in self.nodes if not following.isdisjoint(node.outputs)]
        tensors = {name: tensor for name, tensor in self.tensors.items() if name not in following}
        self.rebuild(tensors, [node for node in self.nodes if following.isdisjoint(node.outputs)])
        self.written.append(replace(written, nodes=tuple(nodes)))

    def take_back(self, nodes: int, tensors: int, wanted: Iterable[str]) -> None:
        """Drop the nodes and tensors after the first `nodes` and `tensors`, except those that `wanted` depends on."""
        needed, kept = set(wanted), list[Node]()
        while len(self.nodes) > nodes:
            node = self.nodes.pop()
            if needed.isdisjoint(node.outputs):
                self._node_names.remove(node.name)
            else:
                needed.update(node.inputs, node.outputs)
                kept.append(node)
        self.nodes += reversed(kept)
        added = [self.tensors.popitem() for _ in range(len(self.tensors) - tensors)]
        self.tensors |= {name: tensor for name, tensor in reversed(added) if name in needed}

    def rebuild(self, tensors: Mapping[str, Tensor], nodes: Sequence[Node]) -> None:
        """Replace all tensors and nodes."""
        self.tensors, self.nodes = dict(tensors), list(nodes)
        self._node_names = {node.name for node in nodes}

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename computed tensors, all at once; raise GraphError if a name is taken."""
        for old, new in names.items():
            self.declare(replace(self.tensors.pop(old), name=new))
        self.nodes = [renamed(node, names) for node in self.nodes]

    def set_role(self, name: str, role: str) -> None:
        """Change a tensor's role; raise GraphError if there is no such tensor."""
        self._kind(name)
        self.tensors[name] = replace(self.tensors[name], role=role)

    def finish(self, updates: Mapping[str, str], metrics: Mapping[str, str]) -> Graph:
        """Return the checked graph."""
        graph = Graph(
            dict(self.tensors),
            tuple(self.nodes),
            dict(updates),
            dict(metrics),
            micro_batches=self.micro_batches,
            accumulated=tuple(self.accumulated),
        )
        check(graph)
        return graph

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; raise GraphError if there is no such tensor."""
        return self._kind(name)[0]

    def _kind(self, name: str) -> tuple[tuple[int, ...], str]:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise GraphError(f"tensor {name!r} is not defined")
        return tensor.shape, tensor.dtype

    def declare(self, tensor: Tensor) -> str:
        """Add a tensor; return its name."""
        if tensor.name in self.tensors:
            raise GraphError(f"tensor {tensor.name!r}: a tensor of that name exists already")
        self.tensors[tensor.name] = tensor
        return tensor.name

    def _name(self, name: str) -> str:
        return name if self._timestep is None else f"{name}.{self._timestep}"

    def _unroll(self, name: str) -> tuple[str, int] | None:
        return None if self._timestep is None else (name, self._timestep)


def too_many_nodes(where: str) -> GraphError:
    """Return the error for a graph with more than MOST_NODES nodes."""
    return GraphError(f"{where}: the graph has more than {MOST_NODES} nodes; reduce its depth or unrolled length")


def _output_names(node: str, count: int) -> tuple[str, ...]:
    return (node,) if count == 1 else tuple(f"{node}.{number}" for number in range(count))
