"""Kernels derived from descriptions that read operands at plain indices and sum over variables.

Values that depend on all index variables are computed block by block; those that depend on some, once for all blocks;
those that depend on none, in double precision. Within a block, operands are read before an output is written, so
outputs may share memory with operands. Operands of 16 bits are widened block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import tdl
from executor.kernels.call import BEYOND, NARROW, Action, Array, Kernel, KernelCall, add_up, blocks, require_room
from executor.kernels.formula import Axes, Formula, FormulaValue, Function, function_of, variables_of
from tdl.catalog import BUILT_IN
from tdl.expr import Call, Constant, Coordinate, Element, Expr, Reduce


@dataclass(frozen=True, slots=True)
class DerivedKernel:
    """The kernel of an operator's description. `settings` are attributes that may change between runs."""

    operator: tdl.Operator
    settings: tuple[str, ...] = ()

    def __call__(self, call: KernelCall) -> None:
        """Run the kernel."""
        call.once(self._bind)()

    def _bind(self, call: KernelCall) -> Action:
        ranks = [*(operand.ndim for operand in call.inputs), *(0 for _ in self.settings)]
        known = {name: call.attributes[name] for name in self.operator.attributes if name in call.attributes}
        description = self.operator.describe(ranks, known)
        try:
            return BoundFormula(call, description, self.settings).action()
        except tdl.TDLError as error:
            raise tdl.TDLError(
                f"{self.operator.name}: {error}; register a kernel by executor.extensions.kernel"
            ) from error


class KernelTable(dict[str, Kernel]):
    """Kernels by operator. A described operator without one gets the kernel derived from its description."""

    def __contains__(self, op: object) -> bool:
        return super().__contains__(op) or type(tdl.catalog.get(str(op))) is tdl.Operator

    def __missing__(self, op: str) -> Kernel:
        return DerivedKernel(tdl.catalog[op])


def with_settings(operator: tdl.Operator) -> DerivedKernel:
    """Return the kernel of a weight update, whose attributes become operands of rank 0."""
    names, count = tuple(operator.attributes), len(operator.operands)

    def description(*operands: tdl.Operand) -> Any:
        settings = {name: operand[()] for name, operand in zip(names, operands[count:], strict=True)}
        return operator.function(*operands[:count], **settings)

    operands = (*operator.operands, *names)
    return DerivedKernel(
        replace(operator, function=description, operands=operands, attributes={}, descriptions={}), names
    )


OUT = -1
"""Index, in a list of values, of the memory of the output."""


@dataclass(slots=True)
class FormulaStep:
    """A function of earlier values. Its result may overwrite value number `room`, which no later step needs."""

    number: int
    name: str
    function: Function
    arguments: tuple[int, ...]
    room: int | None = None


class BoundFormula:
    """A description bound to the arrays of a call, each viewed so that it broadcasts over `axes`, all index variables.

    `scalar` steps depend on no variable, `small` ones on some, `block` ones on all, and `late` ones on sums. A block is
    `given` the values that these steps do not compute. It writes the outputs at `places`; others are written at the
    end.
    """

    def __init__(self, call: KernelCall, description: tdl.Description, settings: tuple[str, ...]) -> None:
        formula, full = Formula(), frozenset(description.variables)
        self.call, self.xp, self.settings, self.values = call, call.xp, settings, formula.values
        self.roots = [formula.number(output.value) for output in description.outputs]
        read = [variables_of(value.node.index) for value in self.values if isinstance(value.node, Element)]
        self.sums = {n: value.arguments[0] for n, value in enumerate(self.values) if isinstance(value.node, Reduce)}
        self.late = self._steps(lambda value: value.is_late)
        summed = {self.values[body].space for body in self.sums.values()}
        if summed - {full} or any(self.values[n.number].space == full for n in self.late):
            raise tdl.TDLError(f"{description}: a kernel is derived of sums of what depends on all variables alone")
        self.axes = next((names for names in read if {*names} == full), description.variables)
        outputs = zip(call.outputs, description.outputs, strict=True)
        self.outs = [self._view(array, variables_of(output.index)) for array, output in outputs]
        self.is_whole = call.outputs[0].dtype.kind == "i" and not self._is_of_bits()
        self.wide = np.result_type(np.float32, *(x.dtype for x in (*call.inputs, *call.outputs) if x.dtype.kind == "f"))
        self.leaves = [*(self._leaf(value.node) for value in self.values), None]
        self.numbers = [n for n, value in enumerate(self.values) if not (value.space or value.is_late)]
        self.scalar = self._steps(lambda value: not (value.space or value.is_late))
        self.small = self._steps(lambda value: bool(value.space) and value.space != full and not value.is_late)
        self.block = self._steps(lambda value: bool(full) and value.space == full and not value.is_late)
        met = {*self.roots, *(n for step in (*self.small, *self.block, *self.late) for n in step.arguments)}
        self.met = met & {*self.numbers} if self.xp is not np else set()  # on a host, numbers are Python's
        nodes = ((n, self.values[n].node) for n in self.numbers)
        self.read = {n: node.operand for n, node in nodes if isinstance(node, Element)}
        cast = {number for number, leaf in enumerate(self.leaves) if self._is_cast(leaf)}
        self.cast = {number for number in cast if self.values[number].space == full}
        self.cast_once = cast - self.cast
        self.places = [place for place, root in enumerate(self.roots) if full and self.values[root].space == full]
        self._find_blocks()

    def _find_blocks(self) -> None:
        """Find what blocks are given and what they write. `full` has their shape, without memory if no array has it."""
        used = [argument for step in self.block for argument in step.arguments]
        used += [*self.sums.values(), *(self.roots[place] for place in self.places)]
        computed = {step.number for step in self.block}
        self.given = [n for n in dict.fromkeys(used) if self.values[n].space and n not in computed]
        self.direct = self._find_rooms(computed.difference(self.roots, self.sums.values()))
        arrays = [*self.outs, *(leaf for leaf in self.leaves if hasattr(leaf, "shape"))]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        wholes = [x for x in arrays if x.shape == shape]
        self.full = wholes[0] if wholes else self.xp.broadcast_to(self.xp.zeros(()), shape)
        self.shapes = {number: self._shape(number) for number in self.sums}

    def _steps(self, belongs: Callable[[FormulaValue], bool]) -> list[FormulaStep]:
        return [
            FormulaStep(number, value.node.function, function_of(self.xp, value.node.function), value.arguments)
            for number, value in enumerate(self.values)
            if isinstance(value.node, Call) and belongs(value)
        ]

    def _is_of_bits(self) -> bool:
        """Return whether there are only bitwise functions, whose results fit if operands and numbers do."""
        functions = {value.node.function[:7] for value in self.values if isinstance(value.node, Call)}
        numbers = [value.node.value for value in self.values if isinstance(value.node, Constant)]
        return functions == {"bitwise"} and all(abs(float(number)) < BEYOND for number in numbers)

    def _leaf(self, node: Expr) -> Any:
        """Return a value that is the same in every run; None for computed values and operands of rank 0."""
        match node:
            case Constant(value):
                return value if isinstance(value, int | float) else float(value)
            case Coordinate(affine):
                scaled: Any = affine.offset
                for name, factor in affine.numerators:
                    scaled = scaled + factor * self._view(self.xp.arange(*self.call.ranges[name]), (name,))
                return scaled if affine.denominator == 1 else scaled / affine.denominator
            case Element(operand, _, index) if index:
                return self._view(self.call.inputs[operand], variables_of(index))
        return None

    def _view(self, array: Array, names: Axes) -> Array:
        """View an array with the given variables over all axes, with extent 1 along the others."""
        if names == self.axes:
            return array
        order = sorted(range(len(names)), key=lambda dim: self.axes.index(names[dim]))
        return array.transpose(order).reshape(
            [array.shape[names.index(name)] if name in names else 1 for name in self.axes]
        )

    def _find_rooms(self, temporary: set[int]) -> int | None:
        """Let steps overwrite temporary values, and the last step an output; return which output."""
        dtypes, last = self._dtypes(), {number: step for step in self.block for number in step.arguments}
        final, is_only = self.block[-1] if self.block else None, len(self.roots) == 1
        is_safe = not self.is_whole and (is_only or {*self.roots}.isdisjoint(self.given))
        alike = [n for n, root in enumerate(self.roots) if self.outs[n].dtype == dtypes[root]] if is_safe else []
        place = next((n for n in alike if final and self.roots[n] == final.number), None)
        is_apart = self.xp is np and not any(np.may_share_memory(self.outs[0], x) for x in self.call.inputs)
        free = [OUT] if place is not None and is_only and is_apart else []
        dtypes.append(self.outs[0].dtype)
        for step in self.block:
            free += [number for number in {*step.arguments} & temporary if last[number] is step]
            step.room = next((number for number in free if dtypes[number] == dtypes[step.number]), None)
            if step.room is not None:
                free.remove(step.room)
        if final is not None and place is not None:
            final.room = OUT
        return place

    def _dtypes(self) -> list[Any]:
        """Return the dtype of each value in a block, determined with empty arrays."""
        values = [self._widened(np.empty(0, x.dtype)) if hasattr(x, "dtype") else x for x in self.leaves]
        for number in self.numbers:
            values[number] = 1.0 if values[number] is None else values[number]
        with np.errstate(all="ignore"):
            for step in (*self.small, *self.block):
                arguments = (values[number] for number in step.arguments)
                values[step.number] = function_of(np, step.name)(*arguments)
        return [getattr(value, "dtype", None) for value in values[:OUT]]

    def action(self) -> Action:
        """Return the action of a run. If the description is a single function of whole arrays, it is that function."""
        leaves, others = self.leaves, (self.cast, self.cast_once, self.scalar, self.small, self.late, self.is_whole)
        root = self.roots[0]
        if len(self.roots) == 1 and isinstance(self.values[root].node, Element) and leaves[root] is not None:
            return partial(self.xp.copyto, self.outs[0], leaves[root])
        is_fixed = all(leaves[number] is not None for number in self.numbers)
        if is_fixed and len(self.places) == len(self.block) == 1 and self.block[0].room == OUT and not any(others):
            return partial(self.block[0].function, *(leaves[n] for n in self.block[0].arguments), out=self.outs[0])
        chosen = [n for value in self.values if _is_choice(value.node) for n in value.arguments[1:]]
        return self._run_quietly if any(isinstance(self.values[n].node, Call) for n in chosen) else self._run

    def _run_quietly(self) -> None:
        """Run without warnings about values that are computed but not selected."""
        with np.errstate(all="ignore"):
            self._run()

    def _run(self) -> None:
        values = self.leaves.copy()
        for number, operand in self.read.items():
            values[number] = self._number(operand)
        for step in self.scalar:
            numbers = [values[number] for number in step.arguments]
            if any(hasattr(number, "dtype") for number in numbers):
                values[step.number] = step.function(*numbers)
            else:
                values[step.number] = function_of(np, step.name)(*numbers).item()
        for number in self.met:
            values[number] = self._met(values[number])
        for number in self.cast_once:
            values[number] = self._widened(values[number])
        for step in self.small:
            values[step.number] = step.function(*[values[number] for number in step.arguments])
        if self.places or self.sums:
            self._run_blocks(values)
        ends = {root: out for root, out in zip(self.roots, self.outs, strict=True) if out.dtype == self.wide}
        for step in self.late:
            values[step.number] = step.function(*[values[n] for n in step.arguments], out=ends.get(step.number))
        for place, root in enumerate(self.roots):
            if place not in self.places and values[root] is not self.outs[place]:
                self._write(self.outs[place], values[root])

    def _run_blocks(self, values: list[Any]) -> None:
        dtype = "int64" if self.is_whole else self.wide
        outs, given = [self.outs[place] for place in self.places], [values[number] for number in self.given]
        totals = {number: self.xp.zeros(shape, dtype) for number, shape in self.shapes.items()}
        first, rest = 1 + len(outs), 1 + len(outs) + len(given)
        for parts in blocks(self.xp, self.full, *outs, *given, *totals.values()):
            block = values.copy()
            if self.direct is not None:
                block[OUT] = parts[1 + self.places.index(self.direct)]
            for number, part in zip(self.given, parts[first:rest], strict=True):
                block[number] = self._widened(part) if number in self.cast else part
            for step in self.block:
                out = None if step.room is None else block[step.room]
                block[step.number] = step.function(*[block[number] for number in step.arguments], out=out)
            for body, total in zip(self.sums.values(), parts[rest:], strict=True):
                add_up(self.xp, block[body], total)
            if self.places != [self.direct]:
                self._write_block(parts[1:first], block)
        for number, total in totals.items():
            values[number] = total

    def _shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a sum, with extent 1 along summed variables."""
        space = self.values[number].space
        return tuple(n if name in space else 1 for name, n in zip(self.axes, self.full.shape, strict=True))

    def _write_block(self, outs: Iterable[Array], block: list[Any]) -> None:
        """Write the outputs that no step has written. An operand may share the memory of another output."""
        roots = [self.roots[place] for place in self.places]
        results = [block[root].copy() if len(roots) > 1 and root in self.given else block[root] for root in roots]
        for place, out, result in zip(self.places, outs, results, strict=True):
            if place != self.direct:
                self._write(out, result)

    def _write(self, out: Array, result: Any) -> None:
        self.xp.copyto(out, result, casting="unsafe")  # functions of integers may return floats
        if self.is_whole and getattr(result, "dtype", out.dtype).kind == "i":
            require_room(self.call, result != out)

    def _is_cast(self, value: Any) -> bool:
        """Return whether an array is converted to another dtype for the computation."""
        dtype = getattr(value, "dtype", None)
        return dtype in NARROW or (self.is_whole and dtype is not None and dtype.kind == "i")

    def _widened(self, value: Any) -> Any:
        return value.astype("int64" if self.is_whole else self.wide) if self._is_cast(value) else value

    def _number(self, operand: int) -> Any:
        """Return an operand of rank 0, or a setting, in double precision."""
        value: Any = (*self.call.inputs, *(self.call.attributes[name] for name in self.settings))[operand]
        if isinstance(value, int | float):
            return value
        value = value if value.dtype.kind in "iub" else value.astype("float64")
        return value.item() if self.xp is np else value

    def _met(self, number: Any) -> Any:
        """Return a number in the form in which it is combined with arrays. Python numbers adopt the arrays' dtype."""
        is_wide = not isinstance(number, bool | int | float) and number.dtype.kind == "f"
        return number.astype(self.wide) if is_wide else number


def _is_choice(node: Expr) -> bool:
    return isinstance(node, Call) and node.function == "where"


UPDATES = ("sgd", "sgd_momentum", "adam", "adamw", "rmsprop", "adagrad")
"""Weight updates, whose attributes may change between steps."""

KERNELS: dict[str, Kernel] = {
    **{name: DerivedKernel(tdl.catalog[name]) for name in BUILT_IN},
    **{name: with_settings(tdl.catalog[name]) for name in UPDATES},
}
"""Kernels of the catalog's operators. Those with other descriptions have kernels in other modules."""
