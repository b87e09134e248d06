"""One pass of translation: traced operators become nodes of a graph, traced tensors become values."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from planner.graph.build import ONES, ZEROS, GraphBuilder
from planner.graph.infer import describe
from planner.graph.ir import FLOATING, Array, Init, Node, Tensor, Value as Attribute
from planner.pytorch.rewrite.axes import Cuts, TiedAxes, Value, parts

Group = tuple[int, ...]

UNKNOWN = 0
"""Upper bound of integer data that are not bounded yet."""


PLACES = ("sort", "topk")
"""Operators whose last output is positions of elements."""


class Translation:
    """A graph under construction from a trace, and the axes of its tensors.

    `place` is the current operator's place in the model, after which nodes are named; `line` is the line of user code.
    `negative` are data with negative integers. `reserved` are the names of the user's tensors, which no node gets.
    """

    def __init__(self, dtype: str, cuts: Cuts, *, reserved: Iterable[str] = (), negative: Container[str] = ()) -> None:
        self.builder = GraphBuilder(dtype, reserved)
        self.axes = TiedAxes()
        self.place = self.line = ""
        self._literals: dict[Hashable, str] = {}
        self.extents: dict[tuple[str, int], int] = {}
        self._cuts = cuts
        self._names: dict[tuple[str, int | None], int] = {}
        self._step: int | None = None
        self._makers: dict[str, Node] = {}
        self._negative = negative
        self._limits: dict[str, int] = {}
        self._ignored: dict[str, set[int | None]] = {}
        self.logits = self.labels = ""

    def weight(self, name: str, shape: tuple[int, ...], init: Init, *, frozen: bool) -> Value:
        """Declare a parameter, trained unless frozen."""
        value, fine = self._declared(name, shape)
        self.builder.flat.add(self.builder.weight(name, fine, init, frozen=frozen))
        return value

    def input(self, name: str, shape: tuple[int, ...], init: Init, dtype: str | None = None) -> Value:
        """Declare data."""
        value, fine = self._declared(name, shape)
        self.builder.input(name, fine, init, dtype)
        return value

    def state(self, name: str, shape: tuple[int, ...], dtype: str, init: Init) -> Value:
        """Declare a buffer that the module changes."""
        return self.plain(self.builder.declare(Tensor(name, shape, dtype, "state", init)))

    def changed(self, weight: Value, tensor: str) -> Value:
        """Replace a weight by what forward made of it, a tensor of the same shape; return that, as a gradient leaf."""
        node = Node(f"{weight.tensor}.changed", "stop_gradient", (tensor,), (), line=self.line)
        (leaf,) = self.builder.emit(node, "weight")
        self.builder.changed[weight.tensor] = leaf
        self.builder.flat.add(leaf)
        self.same_axes(leaf, weight.tensor)
        if weight.tensor in self.builder.frozen:
            self.builder.frozen.add(leaf)
        return Value(leaf, weight.dims, weight.shape)

    def becomes(self, state: Value, tensor: str) -> str:
        """Add the updated tensor of a state, with the elements of `tensor`; return its name."""
        return self.builder.emit(Node(self._name(f"{state.tensor}.next"), "clone", (tensor,), ()), "state")[0]

    def _declared(self, name: str, shape: tuple[int, ...]) -> tuple[Value, tuple[int, ...]]:
        """Return a source as a value, and the shape of its tensor, which may be finer."""
        fine, groups = list[int](), list[Group]()
        for dim, extent in enumerate(shape):
            self.extents[name, dim] = extent
            lengths = parts(extent, self._cuts.get((name, dim), ()))
            groups.append(tuple(range(len(fine), len(fine) + len(lengths))))
            fine += lengths
        self.axes.declare(name, groups, fine)
        return Value(name, tuple(groups), shape), tuple(fine)

    def constant(self, init: Init) -> Value:
        """Return a scalar that is always 0 or 1."""
        name = self.builder.shared(Tensor(f"constant.{init.kind}", (), self.builder.dtype, "input", init))
        return Value(name, (), ())

    def literal(self, content: Array, init: Callable[[], Init]) -> str:
        """Return the tensor of this content, with initial values `init`; equal content shares a tensor."""
        if (key := (content.dtype.name, content.shape, content.tobytes())) not in self._literals:
            self._literals[key] = self._added(content, init)
        return self._literals[key]

    def _added(self, content: Array, init: Callable[[], Init]) -> str:
        """Add a tensor of some content; zero, one and arithmetic sequences take no space."""
        is_whole = content.dtype.name == "int32"
        if (
            content.ndim == 0
            and content in (0, 1)
            and content.dtype.name == self.builder.dtype
            and not np.signbit(content)
        ):
            return self.constant(ONES if content else ZEROS).tensor
        if is_whole and content.ndim == 1 and len(steps := set(np.diff(content).tolist())) == 1:
            return self.counted(int(content[0]), len(content), steps.pop()).tensor
        tensor = Tensor(self._name("constant"), content.shape, content.dtype.name, "constant", init())
        return self.builder.declare(tensor)

    def counted(self, start: int, count: int, step: int = 1) -> Value:
        """Return the integers from `start` on."""
        return self.plain(self.emit("arange", start=start, step=step, extents={"i": count}))

    def emit(self, op: str, /, *tensors: str, **attrs: Attribute) -> str:
        """Add a node with one output."""
        return self.emit_as(op, op, *tensors, **attrs)[0]

    def emit_as(self, name: str, op: str, /, *tensors: str, **attrs: Attribute) -> tuple[str, ...]:
        """Add a node with a given name; return its outputs."""
        name = self._name(name)
        node = Node(name, op, tensors, (), attrs, line=self.line)
        if self._step is not None:
            node = replace(node, name=f"{name}.{self._step}", unroll=(name, self._step))
        outputs = self.builder.emit(node)
        self._makers |= dict.fromkeys(outputs, replace(node, outputs=outputs))
        return outputs

    def maker(self, tensor: str) -> Node | None:
        """Return the node that computes a tensor; None if there is none."""
        return self._makers.get(tensor)

    @contextmanager
    def timestep(self, step: int) -> Iterator[None]:
        """Within this context, nodes belong to a timestep of an unrolled cell."""
        outer, self._step = self._step, step
        try:
            yield
        finally:
            self._step = outer

    def _name(self, what: str) -> str:
        """Return a node name at this place of the model that is unique within the timestep."""
        base = f"{self.place}.{what}" if self.place else what
        number = self._names[base, self._step] = self._names.get((base, self._step), -1) + 1
        name = f"{base}.{number}" if number else base
        return self._name(what) if name in self.builder.reserved else name

    def holds_below(self, value: Value, limit: int, ignored: int | None = None) -> None:
        """Record that integer data are at least 0 and below a limit, or have the ignored value."""
        for name in self._sources_of(value.tensor):
            self._limits[name] = min(limit, self._limits.get(name, limit))
            self._ignored.setdefault(name, set()).add(ignored)

    def is_data(self, value: Value) -> bool:
        """Return True if a value's tensor is a data tensor, apart from its shape."""
        inits = [self.builder.tensors[name].init for name in self._sources_of(value.tensor, ("reshape",))]
        return all(init is not None and init.kind == "data" for init in inits)

    def is_trained(self, value: Value) -> bool:
        """Return True if a value depends on a trained weight, through operators that may have gradients."""
        waiting, met = [value.tensor], set[str]()
        written = {name: gradient.operands for gradient in self.builder.written for name in gradient.results}
        while waiting:
            name = waiting.pop()
            tensor, node = self.builder.tensors[name], self._makers.get(name)
            if name in met or tensor.dtype not in FLOATING:
                continue
            if tensor.role == "weight" and name not in self.builder.frozen:
                return True
            met.add(name)
            operands = () if node is None or node.op == "stop_gradient" else node.inputs
            waiting += written.get(name, operands)
        return False

    def counts_from_zero(self, value: Value) -> bool:
        """Return True if integers are those of the data, or positions, which are not negative."""
        for name in self._sources_of(value.tensor):
            init, node = self.builder.tensors[name].init, self._makers.get(name)
            is_place = node is not None and node.op in PLACES and name == node.outputs[-1]
            if not is_place and (init is None or init.kind != "data" or name in self._negative):
                return False
        return True

    def _sources_of(self, tensor: str, through: Container[str] | None = None) -> Iterator[str]:
        """Yield the tensors whose elements a tensor has, through operators that move elements."""
        waiting = [tensor]
        while waiting:
            name = waiting.pop()
            node = self._makers.get(name)
            if node is None or not self._moves(node, through):
                yield name
            else:
                waiting += node.inputs

    def _moves(self, node: Node, through: Container[str] | None) -> bool:
        if through is not None:
            return node.op in through
        return bool(node.inputs) and describe(node, self.builder.tensors).moves_elements

    def finish_inputs(self) -> None:
        """Set the recorded limits of the data, and the value that all readers ignore."""
        tensors = self.builder.tensors
        for name, limit in self._limits.items():
            if name in tensors and tensors[name].init == Init("data", below=UNKNOWN):  # others were undone
                (ignored,) = self._ignored[name] if len(self._ignored[name]) == 1 else (None,)
                tensors[name] = replace(tensors[name], init=Init("data", below=limit, ignored=ignored))

    def extent(self, value: Value, group: Iterable[int]) -> tuple[int, ...]:
        """Return the lengths of axes of a value's tensor."""
        shape = self.builder.shape(value.tensor)
        return tuple(shape[axis] for axis in group)

    def dtype(self, value: Value) -> str:
        """Return a value's dtype."""
        return self.builder.tensors[value.tensor].dtype

    def rank(self, tensor: str) -> int:
        """Return the number of a tensor's axes."""
        return len(self.builder.shape(tensor))

    def same_axes(self, tensor: str, other: str, but: int | None = None) -> None:
        """Record that a tensor's axes are another's, one by one, except axis `but`, which the tensor may lack."""
        lacks = self.rank(tensor) < self.rank(other)
        for axis in range(self.rank(other)):
            if axis != but:
                self.axes.unite((tensor, axis - (lacks and but is not None and axis > but)), (other, axis))

    def alike(self, tensor: str, value: Value) -> Value:
        """Return a tensor with the axes of a value's tensor as a value of the same dimensions."""
        self.same_axes(tensor, value.tensor)
        return Value(tensor, value.dims, value.shape)

    def plain(self, tensor: str) -> Value:
        """Return a tensor as a value with one dimension per axis."""
        shape = self.builder.shape(tensor)
        return Value(tensor, tuple((axis,) for axis in range(len(shape))), shape)
