"""Kernels derived from descriptions that read operands at plain indices, and sum over variables.

Equal values are computed once. What depends on all index variables is computed block by block; what depends on some,
once for all blocks; what depends on none, in double precision. Within a block every operand is read before an output
is written, so outputs may be the same memory as operands. Operands of 16 bits are widened block by block.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import tdl
from executor.kernels.blocks import add_up, blocks
from executor.kernels.call import NARROW, Action, Array, Kernel, KernelCall
from executor.kernels.elementwise import require_room
from executor.kernels.functions import Function, function_of
from tdl.catalog import loss, pointwise
from tdl.expr import Call, Constant, Coordinate, Element, Expr, Reduce

Axes = tuple[str, ...]
SUM = "Sum"


@dataclass(frozen=True, slots=True)
class Derived:
    """The kernel of an operator's description; `settings` are attributes that may change from run to run."""

    operator: tdl.Operator
    settings: tuple[str, ...] = ()

    def __call__(self, call: KernelCall) -> None:
        """Run the kernel."""
        call.once(self._bind)()

    def _bind(self, call: KernelCall) -> Action:
        ranks = [*(operand.ndim for operand in call.inputs), *(0 for _ in self.settings)]
        known = {name: call.attributes[name] for name in self.operator.attributes if name in call.attributes}
        return Run(call, self.operator.describe(ranks, known), self.settings).action()


def with_settings(operator: tdl.Operator) -> Derived:
    """Return the kernel of a weight update, whose attributes are operands of rank 0."""
    names, count = tuple(operator.attributes), len(operator.operands)

    def description(*operands: tdl.Operand) -> Any:
        settings = {name: operand[()] for name, operand in zip(names, operands[count:], strict=True)}
        return operator.function(*operands[:count], **settings)

    operands = (*operator.operands, *names)
    return Derived(replace(operator, function=description, operands=operands, attributes={}, descriptions={}), names)


@dataclass(frozen=True, slots=True)
class Formula:
    """Values in an order in which each is computed from earlier ones, and the variables that each depends on."""

    nodes: list[Expr] = field(default_factory=list)
    arguments: list[tuple[int, ...]] = field(default_factory=list)
    spaces: list[frozenset[str]] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, node: Expr) -> int:
        """Return the number of a value, one for all that are equal."""
        arguments = tuple(map(self.number, node.children))
        names, key = frozenset[str]().union(*(self.spaces[argument] for argument in arguments)), str(node)
        match node:
            case Call(function):
                key = function
            case Reduce(reducer=reducer, variables=variables) if reducer == SUM:
                names, key = names.difference(variables), f"{SUM} {variables}"
            case Coordinate(affine):
                names = frozenset(affine.variables)
            case Element(operand, _, index):
                names, key = frozenset(name for part in index for name in part.variables), f"{operand} {key}"
            case Constant():
                pass
            case _:
                raise tdl.TDLError(f"no kernel follows from {node}")
        number = self.numbers.setdefault((type(node), key, *arguments), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
            self.arguments.append(arguments)
            self.spaces.append(names)
        return number


@dataclass(slots=True)
class Step:
    """A function of values; its result may be written where value number `room` was, or into the output (OUT)."""

    number: int
    function: Function
    arguments: tuple[int, ...]
    room: int | None = None


OUT = -1


class Run:
    """A description on a call's arrays, each viewed so that it broadcasts over `axes`, all index variables.

    `scalar` steps depend on no variable, `small` ones on some, `block` ones on all, `last` ones on sums.
    """

    def __init__(self, call: KernelCall, description: tdl.Description, settings: tuple[str, ...]) -> None:
        formula, full = Formula(), frozenset(description.variables)
        self.spaces = formula.spaces
        self.call, self.xp, self.settings, self.nodes = call, call.xp, settings, formula.nodes
        self.roots = [formula.number(output.value) for output in description.outputs]
        names = [_names(node.index) for node in self.nodes if isinstance(node, Element)]
        self.axes = next((those for those in names if {*those} == full), description.output_variables)
        self.outs = [self._view(x, _names(out.index)) for x, out in zip(call.outputs, description.outputs, strict=True)]
        self.is_whole = call.outputs[0].dtype.kind == "i"
        self.wide = np.result_type(np.float32, *(x.dtype for x in (*call.inputs, *call.outputs) if x.dtype.kind == "f"))
        self.leaves = [self._leaf(node) for node in self.nodes]
        groups = self._group(formula, full)
        self.scalar, self.small, self.block, self.last = groups
        self.sums = {number: formula.arguments[number][0] for number in range(len(self.nodes)) if self._is_sum(number)}
        self.placed = [place for place, root in enumerate(self.roots) if formula.spaces[root] == full != frozenset()]
        own = {step.number for step in self.block}
        used = [number for step in self.block for number in step.arguments]
        used += [*self.sums.values(), *(self.roots[place] for place in self.placed)]
        self.given = [number for number in dict.fromkeys(used) if number not in own and formula.spaces[number]]
        self.numbers = [number for number, space in enumerate(formula.spaces) if not space and number not in self.sums]
        self.cast = [number for number in self.given if self._is_cast(self.leaves[number])]
        self.dtypes = self._dtypes()
        self._find_rooms()

    def _is_sum(self, number: int) -> bool:
        return isinstance(self.nodes[number], Reduce)

    def _group(self, formula: Formula, full: frozenset[str]) -> list[list[Step]]:
        groups: list[list[Step]] = [[], [], [], []]
        late = set[int]()
        for number, node in enumerate(self.nodes):
            arguments, space = formula.arguments[number], formula.spaces[number]
            if isinstance(node, Reduce) or not late.isdisjoint(arguments):
                late.add(number)
            if isinstance(node, Call):
                group = 3 if number in late else 0 if not space else 2 if space == full else 1
                groups[group].append(Step(number, function_of(self.xp, node.function), arguments))
        return groups

    def _leaf(self, node: Expr) -> Any:
        """Return what a value is for every run; None of what is computed, or read anew."""
        if isinstance(node, Constant):
            return node.value if isinstance(node.value, int | float) else float(node.value)
        if isinstance(node, Coordinate):
            return self._coordinate(node)
        is_array = isinstance(node, Element) and node.index
        return self._view(self.call.inputs[node.operand], _names(node.index)) if is_array else None

    def _coordinate(self, node: Coordinate) -> Array:
        total = node.affine.offset
        for name, factor in node.affine.numerators:
            total = total + factor * self._view(self.xp.arange(*self.call.ranges[name]), (name,))
        return total if node.affine.denominator == 1 else total / node.affine.denominator

    def _view(self, array: Array, names: Axes) -> Array:
        """View an array, whose dimensions are these variables; along others it has extent 1."""
        if names == self.axes:
            return array
        order = sorted(range(len(names)), key=lambda dim: self.axes.index(names[dim]))
        shape = [array.shape[names.index(name)] if name in names else 1 for name in self.axes]
        return array.transpose(order).reshape(shape)

    def _dtypes(self) -> list[Any]:
        """Return the dtype of every value, found with arrays of no elements; None of numbers."""
        values = [self._widened(self.xp.empty((0,), x.dtype)) if hasattr(x, "dtype") else x for x in self.leaves]
        for number in self.numbers:
            values[number] = 1.0 if values[number] is None else values[number]
        with np.errstate(all="ignore"):
            for step in (*self.small, *self.block):
                values[step.number] = step.function(*(values[number] for number in step.arguments))
        return [getattr(value, "dtype", None) for value in values]

    def _find_rooms(self) -> None:
        """Let steps write where there is a value that no later step needs, and the last one into an output.

        Memory of a single output is such a room from the start, unless it is an operand's.
        """
        last = {number: step for step in self.block for number in step.arguments}
        kept, free = {*self.roots, *self.sums.values(), *self.given, *self.numbers}, list[int]()
        is_direct = bool(self.block) and not self.sums and not self.is_whole and {*self.roots}.isdisjoint(self.given)
        place = self.roots.index(self.block[-1].number) if is_direct else 0
        is_direct &= bool(self.block) and self.dtypes[self.block[-1].number] == self.outs[place].dtype
        if (
            is_direct
            and len(self.outs) == 1
            and not any(self.xp.may_share_memory(self.outs[place], x) for x in self.call.inputs)
        ):
            free = [OUT - place]
        for step in self.block:
            free += [number for number in {*step.arguments} if last[number] is step and number not in kept]
            dtype = self.dtypes[step.number]
            rooms = (n for n in free if (self.outs[OUT - n].dtype if n < 0 else self.dtypes[n]) == dtype)
            step.room = next(rooms, None)
            if step.room is not None:
                free.remove(step.room)
        if is_direct:
            self.block[-1].room = OUT - place

    def action(self) -> Action:
        """Return the action of the run: one function of whole arrays, where the description is one."""
        is_one = len(self.block) == 1 and not (self.scalar or self.small or self.last or len(self.outs) > 1)
        arrays = [self.leaves[number] for number in self.given]
        is_one &= all(self.leaves[number] is not None for number in self.numbers)
        if not self.block and len(self.given) == len(self.outs) == 1 and not self.sums and not self.is_whole:
            return partial(self.xp.copyto, self.outs[0], arrays[0], casting="unsafe")
        if is_one and self.block[0].room == OUT and all(self._widened(x) is x for x in arrays):
            (step,) = self.block
            return partial(step.function, *(self.leaves[number] for number in step.arguments), out=self.outs[0])
        is_quiet = any(isinstance(node, Call) and node.function == "where" for node in self.nodes)
        return self._quietly if is_quiet else self._run

    def _quietly(self) -> None:
        """Run without warnings of what is computed, but not chosen."""
        with np.errstate(all="ignore"):
            self._run()

    def _run(self) -> None:
        values = [*self.leaves]
        for number in self.numbers:
            if values[number] is None and isinstance(self.nodes[number], Element):
                values[number] = self._number(self.nodes[number].operand)
        for step in self.scalar:
            values[step.number] = step.function(*(values[number] for number in step.arguments))
        for number in self.numbers:
            if hasattr(values[number], "dtype"):
                values[number] = self._as_met(values[number])
        for step in self.small:
            values[step.number] = step.function(*(self._widened(values[number]) for number in step.arguments))
        self._run_blocks(values)
        for step in self.last:
            values[step.number] = step.function(*(values[number] for number in step.arguments))
        for place, (root, out) in enumerate(zip(self.roots, self.outs, strict=True)):
            if place not in self.placed:
                self._write(out, values[root])

    def _run_blocks(self, values: list[Any]) -> None:
        outs, given = [self.outs[place] for place in self.placed], [values[number] for number in self.given]
        if not outs and not self.sums:
            return
        shape = np.broadcast_shapes(*(array.shape for array in (*outs, *given)))
        full = next(array for array in (*outs, *given) if array.shape == shape)
        totals = [self._total(number, shape) for number in self.sums]
        first, rest = 1 + len(outs), 1 + len(outs) + len(given)
        for parts in blocks(self.xp, full, *outs, *given, *totals):
            block = values.copy()
            for number, part in zip(self.given, parts[first:rest], strict=True):
                block[number] = self._widened(part) if number in self.cast else part
            for step in self.block:
                room = step.room
                out = None if room is None else block[room] if room >= 0 else parts[1 + OUT - room]
                block[step.number] = step.function(*[block[number] for number in step.arguments], out=out)
            for body, total in zip(self.sums.values(), parts[rest:], strict=True):
                add_up(self.xp, block[body], total)
            self._write_block(parts[1:first], block)
        for number, total in zip(self.sums, totals, strict=True):
            values[number] = total

    def _write_block(self, outs: Sequence[Array], block: Sequence[Any]) -> None:
        """Write what no step has written: first what is an operand, which may be the memory of another output."""
        results = [block[self.roots[place]] for place in self.placed]
        if len(results) > 1:
            results = [
                x.copy() if self.roots[n] in self.given else x for n, x in zip(self.placed, results, strict=True)
            ]
        for out, result in zip(outs, results, strict=True):
            if out is not result:
                self._write(out, result)

    def _total(self, number: int, shape: tuple[int, ...]) -> Array:
        kept = [extent if name in self.spaces[number] else 1 for name, extent in zip(self.axes, shape, strict=True)]
        return self.xp.zeros(kept, self.dtypes[self.sums[number]])

    def _write(self, out: Array, result: Any) -> None:
        # What functions make of whole numbers may be fractions of the same values.
        self.xp.copyto(out, result, casting="unsafe")
        if self.is_whole and getattr(result, "dtype", out.dtype).kind == "i":
            require_room(self.call, result != out)

    def _is_cast(self, value: Any) -> bool:
        """True for an array that is computed with in another dtype."""
        dtype = getattr(value, "dtype", None)
        return dtype in NARROW or (self.is_whole and dtype is not None and dtype.kind == "i")

    def _widened(self, value: Any) -> Any:
        return value.astype("int64" if self.is_whole else self.wide) if self._is_cast(value) else value

    def _number(self, operand: int) -> Any:
        """Return an operand of rank 0, or a setting, in double precision."""
        inputs = self.call.inputs
        value = inputs[operand] if operand < len(inputs) else self.call.attributes[self.settings[operand - len(inputs)]]
        if isinstance(value, int | float):
            return value
        value = value if value.dtype.kind in "iub" else value.astype("float64")
        return value.item() if self.xp is np else value

    def _as_met(self, number: Array) -> Any:
        """Return a number as it meets arrays: as Python's on a host, which takes on their dtype."""
        if self.xp is np:
            return number.item()
        return number.astype(self.wide) if number.dtype.kind == "f" else number


def _names(index: Sequence[Any]) -> Axes:
    """Return the variables that an operand's index is of; TDLError for another index."""
    names = tuple(name for part in index if part.is_plain for name in part.variables)
    if len({*names}) != len(index):
        raise tdl.TDLError(f"[{', '.join(map(str, index))}] is no index of distinct variables")
    return names


UPDATES = ("sgd", "sgd_momentum", "adam", "adamw", "rmsprop", "adagrad")
"""Weight updates, whose attributes may change from step to step."""

OTHERS = (
    *("add_n", "where", "masked_fill", "tril", "triu"),
    *("sum_exp", "softmax", "softmax_backward_sum", "softmax_backward", "log_softmax", "log_softmax_backward"),
    *("batch_norm_var", "batch_norm", "batch_norm_backward_reduce", "batch_norm_backward"),
    *("normalize", "normalize_backward_weights", "normalize_backward_statistics", "normalize_backward"),
    *("mean_square", "rms_norm", "rms_norm_backward_weight", "rms_norm_backward_sum", "rms_norm_backward"),
)

KERNELS: dict[str, Kernel] = {
    **{name: Derived(tdl.catalog[name]) for name in (*pointwise.OPERATORS, *loss.OPERATORS, *OTHERS)},
    **{name: with_settings(tdl.catalog[name]) for name in UPDATES},
}
