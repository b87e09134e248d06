"""One pass of translation: traced operators become nodes of a graph, traced tensors become values.

What an operator does is in `operators`; here is what they are made of: values brought into the form that an operator
of the catalog needs, contractions, element-wise operators with broadcasting, reductions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from string import ascii_letters

from planner.errors import GraphError
from planner.graph.build import ONES, ZEROS, GraphBuilder
from planner.graph.infer import MOVES
from planner.graph.ir import ITEM_BYTES, Init, Node
from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Axes, Cuts, Value, parts

Group = tuple[int, ...]

UNKNOWN = 2
"""What whole numbers of the data are below while nothing tells."""


class Translation:
    """A graph under construction from a trace, and the axes of its tensors.

    `place` is where the operator at hand stands in the model: nodes are named after it.
    """

    def __init__(self, dtype: str, cuts: Cuts) -> None:
        self.builder = GraphBuilder(dtype)
        self.axes = Axes()
        self.place = ""
        self.extents: dict[tuple[str, int], int] = {}
        self._cuts = cuts
        self._names: dict[tuple[str, int | None], int] = {}
        self._step: int | None = None
        self._limits: dict[str, int] = {}
        self.logits = self.labels = ""

    # Sources

    def weight(self, name: str, shape: tuple[int, ...], init: Init) -> Value:
        """Declare a parameter that is trained."""
        fine, groups = self._declared(name, shape)
        self.builder.weight(name, fine, init)
        return self._source(name, groups, fine, shape)

    def input(self, name: str, shape: tuple[int, ...], init: Init, dtype: str | None = None) -> Value:
        """Declare data, or a tensor that is not trained."""
        fine, groups = self._declared(name, shape)
        self.builder.input(name, fine, init, dtype)
        return self._source(name, groups, fine, shape)

    def _declared(self, name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Group, ...]]:
        fine: list[int] = []
        groups = []
        for dim, extent in enumerate(shape):
            self.extents[name, dim] = extent
            own = parts(extent, self._cuts.get((name, dim), ()))
            groups.append(tuple(range(len(fine), len(fine) + len(own))))
            fine += own
        return tuple(fine), tuple(groups)

    def _source(self, name: str, groups: tuple[Group, ...], fine: tuple[int, ...], shape: tuple[int, ...]) -> Value:
        self.axes.declare(name, name, groups, fine)
        return Value(name, groups, shape)

    def constant(self, init: Init) -> Value:
        """Return a scalar that is always 0 or 1."""
        name = f"constant.{init.kind}"
        if name not in self.builder.tensors:
            self.builder.input(name, (), init)
        return Value(name, (), ())

    def counted(self, start: int, count: int, step: int = 1) -> Value:
        """Return the whole numbers from `start` on."""
        return self.plain(self.emit("arange", start=start, step=step, extents={"i": count}))

    # Nodes

    def emit(self, op: str, /, *tensors: str, name: str = "", **attrs: Attribute) -> str:
        """Add a node with one output."""
        return self.emit_all(op, *tensors, name=name, **attrs)[0]

    def emit_all(self, op: str, /, *tensors: str, name: str = "", **attrs: Attribute) -> tuple[str, ...]:
        """Add a node; return its outputs."""
        own = self._name(name or op)
        if self._step is None:
            return self.builder.emit(Node(own, op, tensors, (), attrs))
        return self.builder.emit(Node(f"{own}.{self._step}", op, tensors, (), attrs, unroll=(own, self._step)))

    @contextmanager
    def timestep(self, step: int) -> Iterator[None]:
        """Within, nodes are those of a timestep of an unrolled cell."""
        outer, self._step = self._step, step
        try:
            yield
        finally:
            self._step = outer

    def _name(self, what: str) -> str:
        """Return a name for a node at this place of the model that no other node of this timestep has."""
        base = f"{self.place}.{what}" if self.place else what
        number = self._names[base, self._step] = self._names.get((base, self._step), -1) + 1
        return f"{base}.{number}" if number else base

    def holds_below(self, value: Value, limit: int) -> None:
        """Note that whole numbers are below a limit, where they come from the data."""
        for name in self._sources_of(value.tensor):
            self._limits[name] = min(limit, self._limits.get(name, limit))

    def _sources_of(self, tensor: str) -> Iterator[str]:
        """Yield the inputs of which a tensor has elements."""
        makers = {name: node for node in self.builder.nodes for name in node.outputs}
        waiting = [tensor]
        while waiting:
            name = waiting.pop()
            if name not in makers:
                yield name
            elif makers[name].op in MOVES:
                waiting += makers[name].inputs

    def finish_inputs(self) -> None:
        """Let the data be below the limits that were met."""
        tensors = self.builder.tensors
        for name, limit in self._limits.items():
            if tensors[name].init == Init("data", below=UNKNOWN):
                tensors[name] = replace(tensors[name], init=Init("data", below=limit))

    def extent(self, value: Value, group: Iterable[int]) -> tuple[int, ...]:
        """Return the lengths of axes of a value's tensor."""
        shape = self.builder.shape(value.tensor)
        return tuple(shape[axis] for axis in group)

    def dtype(self, value: Value) -> str:
        """Return a value's dtype."""
        return self.builder.tensors[value.tensor].dtype

    def same_dtype(self, one: Value, other: Value) -> bool:
        """Whether two values have one dtype."""
        return self.dtype(one) == self.dtype(other)

    def promoted(self, one: Value, other: Value) -> tuple[Value, Value]:
        """Return two floating-point values in the wider dtype of both."""
        wider = max(self.dtype(one), self.dtype(other), key=lambda name: ITEM_BYTES[name])
        return self.as_dtype(one, wider), self.as_dtype(other, wider)

    def as_dtype(self, value: Value, dtype: str) -> Value:
        """Return the value in a floating-point dtype."""
        return value if self.dtype(value) == dtype else self.unary("cast", value, dtype=dtype)

    def same_axes(self, tensor: str, of: str) -> None:
        """Note that a tensor's axes are another's, one by one."""
        for axis in range(len(self.builder.shape(of))):
            self.axes.unite((tensor, axis), (of, axis))

    # Forms

    def regrouped(self, value: Value, target: Sequence[Group], named: str = "reshape") -> Value:
        """Lay a tensor's axes anew, each group of axes one axis; the result has a dimension an axis.

        Axes of one element may be left out.
        """
        lengths = self.builder.shape(value.tensor)
        kept = [axis for group in target for axis in group]
        left = [axis for axis in range(len(lengths)) if axis not in kept]
        if any(lengths[axis] != 1 for axis in left):
            raise GraphError(f"{self.place}: a tensor of shape {lengths} cannot be laid as {tuple(target)}")
        if [list(group) for group in target] == [[axis] for axis in range(len(lengths))]:
            return Value(value.tensor, tuple((axis,) for axis in range(len(lengths))), lengths)
        letter = {axis: ascii_letters[axis] for axis in range(len(lengths))}
        source = tuple((letter[axis],) for axis in range(len(lengths)))
        ends = [tuple(letter[axis] for axis in group) for group in target]
        # Axes of one element that are left out go along with a neighbour.
        extra = tuple(letter[axis] for axis in left)
        if ends:
            ends[-1] = (*ends[-1], *extra)
        elif extra:
            return self._scalar(value)
        found = self.emit("reshape", value.tensor, name=named, source=source, target=tuple(ends), extents={
            letter[axis]: lengths[axis] for axis in range(len(lengths))
        })
        for place, group in enumerate(target):
            if len(group) == 1:
                self.axes.unite((found, place), (value.tensor, group[0]))
        shape = self.builder.shape(found)
        return Value(found, tuple((axis,) for axis in range(len(shape))), shape)

    def _scalar(self, value: Value) -> Value:
        """Take a tensor of one element for a scalar."""
        found = self.emit("sum", value.tensor, dims=tuple(range(len(self.builder.shape(value.tensor)))))
        return Value(found, (), ())

    def dense(self, value: Value) -> str:
        """Return a tensor of exactly the value's shape."""
        present = [dim for dim in range(value.rank) if value.dims[dim]]
        laid = self.regrouped(value, [value.dims[dim] for dim in present])
        if len(present) == value.rank:
            return laid.tensor
        made = self.builder.tensors[laid.tensor]
        if made.init in (ZEROS, ONES) and not made.shape:
            # Data of that content can lie in any way, what is spread from one element has no batch.
            return self.builder.input(self._name(made.init.kind), value.shape, made.init)
        absent = tuple(dim for dim in range(value.rank) if not value.dims[dim])
        extents = {f"e{number}": value.shape[dim] for number, dim in enumerate(absent)}
        return self.emit("expand", laid.tensor, dims=absent, extents=extents)

    def plain(self, tensor: str) -> Value:
        """Return a tensor as a value with a dimension an axis."""
        shape = self.builder.shape(tensor)
        return Value(tensor, tuple((axis,) for axis in range(len(shape))), shape)

    def densely(self, value: Value) -> Value:
        """Return the value as a tensor of its shape."""
        return self.plain(self.dense(value))

    def squeezed(self, value: Value) -> Value:
        """Return the value without axes of one element: its dimensions are repeated ones."""
        lengths = self.builder.shape(value.tensor)
        if 1 not in lengths:
            return value
        kept = [axis for axis in range(len(lengths)) if lengths[axis] != 1]
        laid = self.regrouped(value, [(axis,) for axis in kept])
        place = {axis: number for number, axis in enumerate(kept)}
        dims = tuple(tuple(place[axis] for axis in group if axis in place) for group in value.dims)
        return Value(laid.tensor, dims, value.shape)

    def merged(self, value: Value, dim: int) -> Value:
        """Return the value with one axis for a dimension."""
        group = value.dims[dim]
        if len(group) <= 1:
            return value
        lengths = self.builder.shape(value.tensor)
        rest = [axis for axis in range(len(lengths)) if axis not in group]
        at = sum(axis < min(group) for axis in rest)
        order: list[Group] = [(axis,) for axis in rest]
        order.insert(at, group)
        laid = self.regrouped(value, order)
        place = {axis: number for number, own in enumerate(order) for axis in own}
        dims = tuple(tuple(dict.fromkeys(place[axis] for axis in own)) for own in value.dims)
        return Value(laid.tensor, dims, value.shape)

    def cut(self, value: Value, dim: int, lengths: Sequence[int]) -> Value:
        """Return the value with axes of these lengths in a dimension, and ask for them at the source."""
        group, own = value.dims[dim], list(self.extent(value, value.dims[dim]))
        if own == list(lengths):
            return value
        if not group:
            raise GraphError(f"{self.place}: cannot cut a repeated dimension")
        fine = _refined(own, list(lengths))
        if fine is None:
            return self.cut(self.merged(value, dim), dim, lengths)
        value = self._split(value, dim, own, fine)
        if fine == list(lengths):
            return value
        return self._joined(value, dim, fine, list(lengths))

    def _split(self, value: Value, dim: int, own: list[int], fine: list[int]) -> Value:
        """Cut a dimension's axes until they have the lengths `fine`."""
        if own == fine:
            return value
        at, pieces = 0, []
        for length in own:
            piece: list[int] = []
            while prod(piece) < length or (length == 1 and not piece):
                piece.append(fine[at])
                at += 1
            pieces.append(piece)
        lengths = self.builder.shape(value.tensor)
        of_axis = dict(zip(value.dims[dim], pieces, strict=True))
        source, target, extents, groups, number = [], [], {}, {}, 0
        for axis, length in enumerate(lengths):
            piece = of_axis.get(axis, [length])
            names = tuple(ascii_letters[number + offset] for offset in range(len(piece)))
            source.append(names)
            target += [(name,) for name in names]
            extents.update(zip(names, piece, strict=True))
            groups[axis] = tuple(range(number, number + len(piece)))
            number += len(piece)
            for place in range(1, len(piece)):
                self.axes.want((value.tensor, axis), prod(piece[place:]))
        found = self.emit("reshape", value.tensor, source=tuple(source), target=tuple(target), extents=extents)
        for axis, group in groups.items():
            if len(group) == 1:
                self.axes.unite((found, group[0]), (value.tensor, axis))
        dims = tuple(tuple(new for axis in own_group for new in groups[axis]) for own_group in value.dims)
        return Value(found, dims, value.shape)

    def _joined(self, value: Value, dim: int, fine: list[int], lengths: list[int]) -> Value:
        """Join neighbouring axes of a dimension until they have these lengths."""
        group, at, joined = value.dims[dim], 0, []
        for length in lengths:
            start, product = at, 1
            while product < length or at == start:
                product *= fine[at]
                at += 1
            joined.append(group[start:at])
        every = len(self.builder.shape(value.tensor))
        first = {own[0]: own for own in joined}
        inner = {axis for own in joined for axis in own[1:]}
        order = [first.get(axis, (axis,)) for axis in range(every) if axis not in inner]
        laid = self.regrouped(value, order)
        place = {axis: number for number, own in enumerate(order) for axis in own}
        dims = tuple(tuple(dict.fromkeys(place[axis] for axis in own)) for own in value.dims)
        return Value(laid.tensor, dims, value.shape)

    def aligned(self, one: Value, one_dim: int, other: Value, other_dim: int) -> tuple[Value, Value]:
        """Return two values whose dimensions have axes of the same lengths."""
        lengths = [list(self.extent(one, one.dims[one_dim])), list(self.extent(other, other.dims[other_dim]))]
        if lengths[0] == lengths[1]:
            return one, other
        if 1 in (*lengths[0], *lengths[1]):
            return self.aligned(self.squeezed(one), one_dim, self.squeezed(other), other_dim)
        fine = _refined(*lengths)
        if fine is None:
            return self.merged(one, one_dim), self.merged(other, other_dim)
        return self.cut(one, one_dim, fine), self.cut(other, other_dim, fine)

    def view(self, value: Value, shape: Sequence[int]) -> Value:
        """Return the value with another shape of as many elements, in row-major order."""
        shape = tuple(shape)
        if shape == value.shape:
            return value
        if any(not group and extent != 1 for group, extent in zip(value.dims, value.shape, strict=True)):
            value = self.densely(value)
        flat = tuple(axis for group in value.dims for axis in group)
        whole = Value(value.tensor, (flat,), (prod(value.shape),))
        own = list(self.extent(whole, flat))
        fine = _refined([length for length in own if length != 1], [extent for extent in shape if extent != 1])
        if fine is None:
            raise GraphError(
                f"{self.place}: a view of shape {value.shape} as {shape} mixes elements of dimensions that do not "
                "divide each other; no split of them is the same before and after"
            )
        fine = _with_ones(own, fine)
        whole = self._split(whole, 0, own, fine)
        remaining = [(axis, length) for axis, length in zip(whole.dims[0], fine, strict=True)]
        dims: list[Group] = []
        for extent in shape:
            group: list[int] = []
            product = 1
            while product < extent:
                axis, length = remaining.pop(0)
                group.append(axis)
                product *= length
            dims.append(tuple(group))
        ones = [axis for axis, _ in remaining] + [
            axis for group in dims for axis in group if self.builder.shape(whole.tensor)[axis] == 1
        ]
        found = Value(whole.tensor, tuple(dims), shape)
        return self._without(found, set(ones)) if ones else found

    def _without(self, value: Value, ones: set[int]) -> Value:
        """Drop axes of one element."""
        lengths = self.builder.shape(value.tensor)
        kept = [axis for axis in range(len(lengths)) if axis not in ones]
        laid = self.regrouped(value, [(axis,) for axis in kept])
        place = {axis: number for number, axis in enumerate(kept)}
        dims = tuple(tuple(place[axis] for axis in group if axis in place) for group in value.dims)
        return Value(laid.tensor, dims, value.shape)

    # Operators by form

    def unary(self, op: str, x: Value, /, name: str = "", **attrs: Attribute) -> Value:
        """Apply an element-wise operator of one operand."""
        found = self.emit(op, x.tensor, name=name, **attrs)
        self.same_axes(found, x.tensor)
        return Value(found, x.dims, x.shape)

    def binary(self, op: str, one: Value, other: Value, /, commutes: bool = False, **attrs: Attribute) -> Value:
        """Apply an element-wise operator of two operands that are broadcast as in PyTorch."""
        rank = max(one.rank, other.rank)
        one, other = (_padded(value, rank) for value in (one, other))
        for dim in range(rank):
            if one.shape[dim] != other.shape[dim]:
                one = self.squeezed(one) if one.shape[dim] == 1 and one.dims[dim] else one
                other = self.squeezed(other) if other.shape[dim] == 1 and other.dims[dim] else other
            elif one.dims[dim] and other.dims[dim]:
                one, other = self.aligned(one, dim, other, dim)
        one, other = self._unit_axes_agree(one, other)
        if not _covers(one, other):
            if commutes and _covers(other, one):
                return self.binary(op, other, one, **attrs)
            one = self._spread(one, other)
        axis_of = {
            theirs: own
            for dim in range(rank)
            for own, theirs in zip(one.dims[dim], other.dims[dim], strict=bool(other.dims[dim]))
        }
        dims = tuple(axis_of[axis] for axis in range(len(axis_of)))
        if dims != tuple(range(len(self.builder.shape(one.tensor)))):
            attrs["dims"] = dims
        found = self.emit(op, one.tensor, other.tensor, **attrs)
        self.same_axes(found, one.tensor)
        for theirs, own in axis_of.items():
            self.axes.unite((other.tensor, theirs), (found, own))
        shape = tuple(max(pair) for pair in zip(one.shape, other.shape, strict=True))
        return Value(found, one.dims, shape)

    def _unit_axes_agree(self, one: Value, other: Value) -> tuple[Value, Value]:
        """Drop axes of one element where only one of two values has them."""
        for dim in range(one.rank):
            if one.shape[dim] == other.shape[dim] == 1 and bool(one.dims[dim]) != bool(other.dims[dim]):
                return self.squeezed(one), self.squeezed(other)
        return one, other

    def _spread(self, one: Value, other: Value) -> Value:
        """Repeat a value along the dimensions that only the other has."""
        dims, inserted, lengths = list(one.dims), [], {}
        at = len(self.builder.shape(one.tensor))
        for dim in range(one.rank):
            if not one.dims[dim] and other.dims[dim]:
                own = self.extent(other, other.dims[dim])
                dims[dim] = tuple(range(at, at + len(own)))
                for length in own:
                    lengths[f"e{len(inserted)}"] = length
                    inserted.append(at)
                    at += 1
        found = self.emit("expand", one.tensor, dims=tuple(inserted), extents=lengths)
        for axis in range(len(self.builder.shape(one.tensor))):
            self.axes.unite((found, axis), (one.tensor, axis))
        shape = tuple(max(pair) for pair in zip(one.shape, other.shape, strict=True))
        return Value(found, tuple(dims), shape)

    def reduce(self, op: str, value: Value, over: Sequence[int], keep: bool = False, **attrs: Attribute) -> Value:
        """Reduce dimensions."""
        over = tuple(dim % value.rank for dim in over) if over else tuple(range(value.rank))
        if any(not value.dims[dim] and value.shape[dim] != 1 for dim in over):
            value = self.densely(value)
        gone = {axis for dim in over for axis in value.dims[dim]}
        if not gone:
            found = value.tensor
        else:
            found = self.emit(op, value.tensor, dims=tuple(sorted(gone)), **attrs)
        kept = [axis for axis in range(len(self.builder.shape(value.tensor))) if axis not in gone]
        place = {axis: number for number, axis in enumerate(kept)}
        for axis, number in place.items():
            self.axes.unite((found, number), (value.tensor, axis))
        dims = [
            () if dim in over else tuple(place[axis] for axis in group) for dim, group in enumerate(value.dims)
        ]
        shape = [1 if dim in over else extent for dim, extent in enumerate(value.shape)]
        if not keep:
            dims = [group for dim, group in enumerate(dims) if dim not in over]
            shape = [extent for dim, extent in enumerate(shape) if dim not in over]
        return Value(found, tuple(dims), tuple(shape))

    def contract(
        self, one: Value, other: Value, summed: Sequence[tuple[int, int]], shared: Sequence[tuple[int, int]] = ()
    ) -> Value:
        """Multiply two values and sum over pairs of dimensions; `shared` dimensions of both are kept once.

        The result has the shared dimensions, then the first value's others, then the second's.
        """
        one = self._present(one, [a for a, _ in summed])
        other = self._present(other, [b for _, b in summed])
        for a, b in (*summed, *shared):
            if one.dims[a] and other.dims[b]:
                one, other = self.aligned(one, a, other, b)
        letters = iter(ascii_letters)
        mine = {axis: next(letters) for axis in range(len(self.builder.shape(one.tensor)))}
        theirs: dict[int, str] = {}
        for a, b in (*summed, *shared):
            if one.dims[a] and other.dims[b]:
                theirs.update({there: mine[here] for here, there in zip(one.dims[a], other.dims[b], strict=True)})
        for axis in range(len(self.builder.shape(other.tensor))):
            theirs.setdefault(axis, "")
            theirs[axis] = theirs[axis] or next(letters)
        rows = [dim for dim in range(one.rank) if dim not in {a for a, _ in (*summed, *shared)}]
        columns = [dim for dim in range(other.rank) if dim not in {b for _, b in (*summed, *shared)}]
        groups = [
            tuple(mine[axis] for axis in one.dims[a]) or tuple(theirs[axis] for axis in other.dims[b])
            for a, b in shared
        ]
        groups += [tuple(mine[axis] for axis in one.dims[dim]) for dim in rows]
        groups += [tuple(theirs[axis] for axis in other.dims[dim]) for dim in columns]
        shape = [max(one.shape[a], other.shape[b]) for a, b in shared]
        shape += [one.shape[dim] for dim in rows] + [other.shape[dim] for dim in columns]
        left, right = ("".join(own[axis] for axis in sorted(own)) for own in (mine, theirs))
        output = "".join(letter for group in groups for letter in group)
        found = self._product(one.tensor, other.tensor, (left, right, output))
        for tensor, own in ((one.tensor, left), (other.tensor, right)):
            for axis, letter in enumerate(own):
                if letter in output:
                    self.axes.unite((tensor, axis), (found, output.index(letter)))
        for axis, letter in enumerate(right):
            if letter in left:
                self.axes.unite((other.tensor, axis), (one.tensor, left.index(letter)))
        dims = tuple(tuple(output.index(letter) for letter in group) for group in groups)
        return Value(found, dims, tuple(shape))

    def _present(self, value: Value, dims: Iterable[int]) -> Value:
        """Return the value with axes for dimensions that are repeated."""
        return self.densely(value) if any(not value.dims[d] and value.shape[d] != 1 for d in dims) else value

    def _product(self, one: str, other: str, letters: tuple[str, str, str]) -> str:
        """Multiply two matrices as such, and other tensors by an equation."""
        left, right, output = letters
        is_matrices = len(left) == len(right) == len(output) == 2 and len({*left, *right}) == 3
        if is_matrices and output[0] in left and output[1] in right:
            attrs: dict[str, Attribute] = {}
            if left[0] != output[0]:
                attrs["transpose_a"] = True
            if right[1] != output[1]:
                attrs["transpose_b"] = True
            return self.emit("mm", one, other, **attrs)
        return self.emit("einsum", one, other, equation=f"{left},{right}->{output}")


def _padded(value: Value, rank: int) -> Value:
    """Return the value with repeated dimensions before its own."""
    missing = rank - value.rank
    return Value(value.tensor, ((),) * missing + value.dims, (1,) * missing + value.shape)


def _covers(one: Value, other: Value) -> bool:
    """Whether a value has every axis that the other has."""
    return all(own or not theirs for own, theirs in zip(one.dims, other.dims, strict=True))


def _refined(one: list[int], other: list[int]) -> list[int] | None:
    """Return the coarsest lengths of which both are groupings; None where bounds cross."""
    bounds = sorted({prod(lengths[at:]) for lengths in (one, other) for at in range(len(lengths))} | {1}, reverse=True)
    if any(large % small for large, small in zip(bounds, bounds[1:], strict=False)):
        return None
    return [large // small for large, small in zip(bounds, bounds[1:], strict=False)]


def _with_ones(own: list[int], fine: list[int]) -> list[int]:
    """Put lengths of 1 back where they stand among the lengths that `fine` refines."""
    found, rest = [], list(fine)
    for length in own:
        if length == 1:
            found.append(1)
            continue
        product = 1
        while product < length:
            product *= rest[0]
            found.append(rest.pop(0))
    return found
