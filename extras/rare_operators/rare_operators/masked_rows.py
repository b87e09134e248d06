"""A copy of a graph in which masked selections keep the mask's full length; see `selections`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Graph, Node, map_arg

from planner.pytorch.nodes import bound, example, leaves, packet
from planner.pytorch.private import OpOverload

aten = torch.ops.aten


class Unspreadable(Exception):  # noqa: N818 -- not an error: the trace stays unchanged
    """An operator uses a masked selection in an unsupported way."""


def symbols_of(node: Node) -> list[str]:
    """Return the symbolic extents of a node's results, as text."""
    tensors = (leaf for leaf in leaves(example(node)) if isinstance(leaf, torch.Tensor))
    return [str(extent) for tensor in tensors for extent in tensor.shape if not isinstance(extent, int)]


class Spread:
    """Builds a copy of a graph in which every unknown extent becomes that of its mask.

    `masks` maps a symbol to the mask's node in the copy, `rows` to the mask's number of elements. `rules` maps an
    operator's name to its handling of rows that do not all count.
    """

    def __init__(self, old: Graph, rules: Mapping[str, Callable[[Spread], Any]]) -> None:
        self.old, self.new, self.of = old, Graph(), dict[Node, Any]()
        self.rules = rules
        self.masks, self.rows = dict[str, Node](), dict[str, int]()
        self.constants: dict[str, NDArray[np.int64]] = {}
        self.node: Node = next(iter(old.nodes))

    def graph(self) -> Graph:
        """Return the copy."""
        for node in self.old.nodes:
            self.node = node
            if node.op == "output":
                self.new.output(None)
                self.new.output_node().args = self.mapped(node.args)
            elif self._is_concerned():
                self.of[node] = self._spread()
            elif packet(node) not in ASSERTIONS and not self._is_asserted():
                self.of[node] = self.new.node_copy(node, self.of.__getitem__)
        return self.new

    def _is_asserted(self) -> bool:
        """Return whether a node is a number that only assertions read."""
        is_number = not isinstance(example(self.node), torch.Tensor | list | tuple) and self.node.op == "call_function"
        return is_number and all(packet(user) in ASSERTIONS or user.target in COMPARED for user in self.node.users)

    def _is_concerned(self) -> bool:
        node = self.node
        if node.op != "call_function" or packet(node) in ASSERTIONS or self._is_asserted():
            return False
        return bool(symbols_of(node)) or any(
            symbols_of(operand) or is_number(operand) for operand in node.all_input_nodes
        )

    def _spread(self) -> Any:
        node = self.node
        name = packet(node).removesuffix("_")
        if node.target is operator.getitem:
            several, number = cast(Any, node.args)
            results = self.of[several]
            return results[number] if isinstance(results, list) else self.call(operator.getitem, results, number)
        if is_number(node):
            return self._number(name)
        if not isinstance(node.target, OpOverload):
            raise Unspreadable
        if unknown := [symbol for symbol in symbols_of(node) if symbol not in self.rows]:
            return self.selected(name, unknown[0])
        is_pointwise = torch.Tag.pointwise in node.target.tags
        if not self._is_aligned(name) or (not is_pointwise and self._reads_numbers(name)):
            raise Unspreadable
        if rule := self.rules.get(name):
            return rule(self)
        if is_pointwise:
            return self.checked(self.call(node.target, *self._counted(node.args), **self._counted(node.kwargs)))
        if not (name in BY_ROW or self.keeps_rows(name)):
            raise Unspreadable
        given = self.places if name in BY_PLACE else self.mapped
        return self.checked(self.call(node.target, *given(node.args), **given(node.kwargs)))

    def _number(self, name: str) -> Any:
        """Return a mask's number of rows, or Python arithmetic on it."""
        if name == "sym_size":
            source, dim = self.node.args
            return example(self.of[source]).shape[dim]  # type: ignore[index]
        if self.node.target in ARITHMETIC:
            return cast(Any, self.node.target)(*self.mapped(self.node.args))
        raise Unspreadable

    def _is_aligned(self, name: str) -> bool:
        """Return whether all rows that meet come from the same mask and no rows are added up that do not all count."""
        given = {symbol for operand in self.node.all_input_nodes for symbol in symbols_of(operand)}
        kept = set(symbols_of(self.node))
        if given <= kept:
            return True
        first, *others = (self.masks[symbol] for symbol in given | kept)
        return name not in BY_ROW and all(same(first, mask) for mask in others)

    def _reads_numbers(self, name: str) -> bool:
        """Return whether an operator takes the number of rows as a value, not only as an extent of its result."""
        numbers = [operand for operand in self.node.all_input_nodes if is_number(operand)]
        return bool(numbers) and (name not in SHAPED or bound(self.node).get("fill_value") in numbers)

    def _counted(self, arguments: Any) -> Any:
        """Return arguments in the copy; a number of rows becomes the number of rows that count."""
        return map_arg(arguments, lambda node: self._count_of(node) if is_number(node) else self.of[node])

    def _count_of(self, number: Any) -> Any:
        """Return an expression of the number of rows as a tensor, evaluated for the rows that count."""
        dtype = example(self.node).dtype
        if not isinstance(number, Node):
            return self.call(aten.scalar_tensor.default, number, dtype=dtype)
        if packet(number) == "sym_size":
            first, second = cast(Any, number.args)
            return self.count(str(example(first).shape[second]), self.node)
        if not dtype.is_floating_point:
            raise Unspreadable
        return self.call(ARITHMETIC[number.target], *map(self._count_of, number.args))

    def places(self, arguments: Any) -> Any:
        """Return arguments in the copy; integers in rows that do not count become 0, a valid index."""
        return map_arg(arguments, lambda node: self.only_valid(node, 0) if is_whole(node) else self.of[node])

    def keeps_rows(self, name: str) -> bool:
        """Return whether an operator works along dimensions other than those of rows."""
        arguments = bound(self.node)
        first = next((value for value in leaves(self.node.args[0]) if isinstance(value, Node)), None)
        if first is None or "dim" not in arguments or name not in ALONG:
            return False
        rank = len(example(first).shape) + (name == "stack")
        dims = arguments["dim"] if isinstance(arguments["dim"], list | tuple) else [arguments["dim"]]
        if not dims or None in dims:
            return False
        return not {dim % max(1, rank) for dim in dims} & set(self.ragged(first))

    def ragged(self, node: Node) -> list[int]:
        """Return the dimensions whose rows a mask selects."""
        return [dim for dim, extent in enumerate(example(node).shape) if not isinstance(extent, int)]

    def mapped(self, arguments: Any) -> Any:
        """Return arguments in the copy."""
        return map_arg(arguments, self.of.__getitem__)

    def call(self, target: Any, *arguments: Any, **named: Any) -> Node:
        """Add a call and its example result to the copy."""
        node = self.new.call_function(target, arguments, named)
        values, keywords = map_arg((arguments, named), example)
        node.meta = {**self.node.meta, "val": target(*values, **keywords)}
        return node

    def checked(self, result: Node) -> Node:
        """Return `result` if its shapes match those of the original; otherwise raise `Unspreadable`."""
        for old, new in zip(leaves(example(self.node)), leaves(example(result)), strict=True):
            if isinstance(old, torch.Tensor):
                shape = [extent if isinstance(extent, int) else self.rows.get(str(extent)) for extent in old.shape]
                if shape != list(new.shape):  # type: ignore[attr-defined]
                    raise Unspreadable
        return result

    def constant(self, content: NDArray[np.int64]) -> Node:
        """Add constant integers to the copy."""
        name = f"selected_{len(self.constants)}"
        self.constants[name] = content
        node = self.new.get_attr(name)
        node.meta = {**self.node.meta, "val": torch.empty(content.shape, dtype=torch.int64)}
        return node

    def selected(self, name: str, symbol: str) -> Any:
        """Return a masked selection in the copy: all elements, unselected."""
        arguments = bound(self.node)
        if name == "index":
            dims = [dim for dim, index in enumerate(arguments["indices"]) if index is not None]
            if len(dims) != 1 or example(arguments["indices"][dims[0]]).dtype is not torch.bool:
                raise Unspreadable
            mask = self.mask(arguments["indices"][dims[0]], symbol)
            value, rank = self.of[arguments["self"]], len(example(mask).shape)
            shape = list(example(value).shape)
            shape[dims[0] : dims[0] + rank] = [self.rows[symbol]]
            return self.checked(self.call(aten.reshape.default, value, shape))
        if name not in SELECTING or len(self.node.args) > 2:
            raise Unspreadable
        mask = self.mask(arguments["mask"] if name == "masked_select" else self.node.args[0], symbol)
        shape = example(mask).shape
        if name == "masked_select" and example(self.of[arguments["self"]]).shape == shape:
            return self.call(aten.reshape.default, self.of[arguments["self"]], [-1])
        if name == "nonzero":
            return self.constant(_all_places(shape))
        if name in ("where", "nonzero_numpy") and len(self.node.args) == 1:
            return self.columns(shape)
        raise Unspreadable

    def columns(self, shape: Sequence[int]) -> list[Node]:
        """Return the indices of all elements of a shape, one node per dimension."""
        return [self.constant(column) for column in _all_places(shape).T]

    def mask(self, old: Any, symbol: str) -> Node:
        """Record the mask of a symbol and return its node; raise `Unspreadable` if the symbol has another mask."""
        mask: Node = self.of[old]
        if symbols_of(old):
            raise Unspreadable
        if example(old).dtype is not torch.bool:
            mask = self.call(aten.ne.Scalar, mask, 0)
        if not same(self.masks.setdefault(symbol, mask), mask):
            raise Unspreadable
        self.rows[symbol] = prod(example(mask).shape)
        return mask

    def valid(self, symbol: str, rank: int, dim: int) -> Node:
        """Return booleans for the rows that count, along dimension `dim` of `rank`."""
        shape = [1] * rank
        shape[dim] = self.rows[symbol]
        return self.call(aten.reshape.default, self.masks[symbol], shape)

    def only_valid(self, node: Node, nothing: float) -> Node:
        """Return an operand with `nothing` in rows that do not count."""
        value: Node = self.of[node]
        for dim in self.ragged(node):
            valid = self.valid(str(example(node).shape[dim]), len(example(node).shape), dim)
            hidden = self.call(aten.logical_not.default, valid)
            value = self.call(aten.masked_fill.Scalar, value, hidden, nothing)
        return value

    def count(self, symbol: str, like: Node) -> Node:
        """Return the number of rows that count, in a node's dtype."""
        number = self.call(aten.sum.default, self.masks[symbol])
        return self.call(aten.to.dtype, number, example(like).dtype)


def same(first: Any, second: Any) -> bool:
    """Return whether two nodes are the same, or the same deterministic operator on the same operands."""
    if not isinstance(first, Node) or not isinstance(second, Node) or first is second:
        return bool(first == second) and type(first) is type(second)
    if first.op != "call_function" or first.target is not second.target or first.kwargs != second.kwargs:
        return False
    is_random = isinstance(first.target, OpOverload) and torch.Tag.nondeterministic_seeded in first.target.tags
    pairs = [leaves(pair) for pair in zip(first.args, second.args, strict=False)]
    return not is_random and len(first.args) == len(second.args) and all(same(*pair) for pair in pairs)


def _all_places(shape: Sequence[int]) -> NDArray[np.int64]:
    return np.argwhere(np.ones([*map(int, shape)]))


def is_number(node: Node) -> bool:
    """Return whether a node is a Python number that depends on data."""
    return isinstance(example(node), torch.SymInt | torch.SymBool | torch.SymFloat)


def is_whole(node: Node) -> bool:
    """Return whether a node is an integer tensor with rows that a mask selects."""
    tensor = example(node)
    return isinstance(tensor, torch.Tensor) and tensor.dtype in WHOLE and bool(symbols_of(node))


SELECTING = ("masked_select", "nonzero", "where", "nonzero_numpy")
"""Operators, apart from `index`, whose results have a length that depends on a mask."""

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


ASSERTIONS = ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size", "_assert_async")
COMPARED = (operator.ge, operator.le, operator.eq, operator.gt, operator.lt)
ARITHMETIC: Mapping[Any, OpOverload] = {
    operator.mul: aten.mul.Tensor,
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.truediv: aten.div.Tensor,
    operator.floordiv: aten.floor_divide.default,
    torch.sym_max: aten.maximum.default,
    torch.sym_min: aten.minimum.default,
    torch.sym_float: aten.alias.default,
}
"""Python arithmetic and the corresponding tensor operators."""

SHAPED = frozenset((
    "view", "reshape", "expand", "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "new_empty", "empty",
    "rand", "randn",
))  # fmt: skip
"""Operators that take the extents of their results."""

BY_PLACE = frozenset(("embedding", "one_hot", "gather"))
"""Operators that take integers as indices."""

BY_ROW = frozenset((
    "linear", "mm", "matmul", "addmm", "embedding", "layer_norm", "rms_norm", "view", "reshape", "flatten",
    "unsqueeze", "squeeze", "transpose", "t", "permute", "expand", "clone", "detach", "contiguous", "to", "_to_copy",
    "alias", "type_as", "broadcast_tensors", "dropout", "one_hot", "zeros_like", "ones_like", "full_like",
    "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "empty_like", "rand_like", "randn_like", "bernoulli",
))  # fmt: skip
"""Operators that keep their operands' rows, as the shapes confirm."""

ALONG = frozenset((
    "softmax", "log_softmax", "cumsum", "sort", "topk", "argmax", "argmin", "max", "min", "amax", "amin", "sum", "mean",
    "var", "std", "logsumexp", "linalg_vector_norm", "norm", "prod", "cat", "stack", "split", "split_with_sizes",
    "chunk", "unbind", "select", "slice", "gather", "glu", "any", "all", "flip", "cosine_similarity", "unflatten",
))  # fmt: skip
"""Operators along dimensions."""
