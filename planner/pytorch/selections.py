"""What a mask selects, spread: rows stay where they are, and what the mask hides is left out where rows meet.

A trace says of what a mask selects that it has as many rows as a number that it does not know, u0 or the like. Such a
dimension is made as long as the mask; whatever adds rows up, writes them or averages over them is told which count.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from math import inf, prod
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Graph, Node, map_arg

from planner.errors import GraphError
from planner.pytorch.folding import bound
from planner.pytorch.graphs import example, leaves, packet
from planner.pytorch.private import OpOverload, fake_mode_of, schema_of
from planner.pytorch.refusing import silent
from planner.pytorch.tracing import Trace

aten = torch.ops.aten


class _Unspreadable(Exception):  # noqa: N818 -- no error: the trace stays as it is
    """An operator works on what a mask selects in a way that is not known here."""


def spread_selections(trace: Trace) -> bool:
    """Spread what masks select; return False, and leave the trace as it is, where an operator is in the way."""
    module = trace.program.graph_module
    if not any(_symbols(node) for node in module.graph.nodes):
        return False
    spread = _Spread(module.graph)
    try:
        with fake_mode_of([example(node) for node in module.graph.nodes]), torch.no_grad(), silent():
            graph = spread.graph()
    except (_Unspreadable, RuntimeError, TypeError, ValueError, IndexError, GraphError):
        return False
    for name, content in spread.constants.items():
        module.register_buffer(name, torch.from_numpy(np.ascontiguousarray(content)), persistent=False)
    module.graph = graph
    return True


def _symbols(node: Node) -> list[str]:
    """Return the numbers that a trace does not know among a result's extents."""
    tensors = (leaf for leaf in leaves(example(node)) if isinstance(leaf, torch.Tensor))
    return [str(extent) for tensor in tensors for extent in tensor.shape if not isinstance(extent, int)]


class _Spread:
    """A copy of a graph in the making, in which every unknown extent is that of a mask.

    `masks` are, by symbol, the mask's node in the copy; `rows` how many elements it has.
    """

    def __init__(self, old: Graph) -> None:
        self.old, self.new, self.of = old, Graph(), dict[Node, Any]()
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
        """Return True for a number that only assertions read."""
        is_number = not isinstance(example(self.node), torch.Tensor | list | tuple) and self.node.op == "call_function"
        return is_number and all(packet(user) in ASSERTIONS or user.target in COMPARED for user in self.node.users)

    def _is_concerned(self) -> bool:
        node = self.node
        if node.op != "call_function" or packet(node) in ASSERTIONS or self._is_asserted():
            return False
        return bool(_symbols(node)) or any(_symbols(one) or _is_number(one) for one in node.all_input_nodes)

    def _spread(self) -> Any:
        node = self.node
        name = packet(node).removesuffix("_")
        if node.target is operator.getitem:
            several, number = cast(Any, node.args)
            made = self.of[several]
            return made[number] if isinstance(made, list) else self.call(operator.getitem, made, number)
        if _is_number(node):
            return self._number(name)
        if not isinstance(node.target, OpOverload):
            raise _Unspreadable
        if unknown := [symbol for symbol in _symbols(node) if symbol not in self.rows]:
            return self._selected(name, unknown[0])
        if rule := RULES.get(name):
            return rule(self)
        if not (torch.Tag.pointwise in node.target.tags or name in BY_ROW or self._keeps_rows(name)):
            raise _Unspreadable
        return self.checked(self.call(node.target, *self.mapped(node.args), **self.mapped(node.kwargs)))

    def _number(self, name: str) -> Any:
        """Return how many rows a mask has, or what Python makes of that."""
        if name == "sym_size":
            source, dim = self.node.args
            return example(self.of[source]).shape[dim]  # type: ignore[index]
        if self.node.target in ARITHMETIC:
            return self.node.target(*self.mapped(self.node.args))
        raise _Unspreadable

    def _keeps_rows(self, name: str) -> bool:
        """Return True for an operator along other dimensions than those of rows."""
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
        """Return the dimensions of rows that a mask selects."""
        return [dim for dim, extent in enumerate(example(node).shape) if not isinstance(extent, int)]

    def mapped(self, arguments: Any) -> Any:
        """Return arguments as the copy has them."""
        return map_arg(arguments, self.of.__getitem__)

    def call(self, target: Any, *arguments: Any, **named: Any) -> Node:
        """Add a call to the copy, with what it returns."""
        node = self.new.call_function(target, arguments, named)
        values, keywords = map_arg((arguments, named), example)
        node.meta = {**self.node.meta, "val": target(*values, **keywords)}
        return node

    def checked(self, made: Node) -> Node:
        """Return a node whose results have the shapes that the old one's have."""
        for old, new in zip(leaves(example(self.node)), leaves(example(made)), strict=True):
            if isinstance(old, torch.Tensor):
                shape = [extent if isinstance(extent, int) else self.rows.get(str(extent)) for extent in old.shape]
                if shape != list(new.shape):  # type: ignore[attr-defined]
                    raise _Unspreadable
        return made

    def constant(self, content: NDArray[np.int64]) -> Node:
        """Add whole numbers that are known to the copy."""
        name = f"selected_{len(self.constants)}"
        self.constants[name] = content
        node = self.new.get_attr(name)
        node.meta = {**self.node.meta, "val": torch.empty(content.shape, dtype=torch.int64)}
        return node

    def _selected(self, name: str, symbol: str) -> Any:
        """Return what a mask selects: all there is."""
        arguments = bound(self.node)
        if name == "index":
            dims = [dim for dim, index in enumerate(arguments["indices"]) if index is not None]
            if len(dims) != 1 or example(arguments["indices"][dims[0]]).dtype is not torch.bool:
                raise _Unspreadable
            mask = self._mask(arguments["indices"][dims[0]], symbol)
            value, rank = self.of[arguments["self"]], len(example(mask).shape)
            shape = list(example(value).shape)
            shape[dims[0] : dims[0] + rank] = [self.rows[symbol]]
            return self.checked(self.call(aten.reshape.default, value, shape))
        mask = self._mask(arguments["mask"] if name == "masked_select" else self.node.args[0], symbol)
        shape = example(mask).shape
        if name == "masked_select" and example(self.of[arguments["self"]]).shape == shape:
            return self.call(aten.reshape.default, self.of[arguments["self"]], [-1])
        places = np.argwhere(np.ones([*map(int, shape)]))
        if name == "nonzero":
            return self.constant(places)
        if name in ("where", "nonzero_numpy") and len(self.node.args) == 1:
            return [self.constant(column) for column in places.T]
        raise _Unspreadable

    def _mask(self, old: Any, symbol: str) -> Node:
        """Note which mask says how many rows a symbol stands for."""
        mask: Node = self.of[old]
        if _symbols(old):
            raise _Unspreadable
        if example(old).dtype is not torch.bool:
            mask = self.call(aten.ne.Scalar, mask, 0)
        self.masks[symbol], self.rows[symbol] = mask, prod(example(mask).shape)
        return mask

    def valid(self, symbol: str, rank: int, dim: int) -> Node:
        """Return which rows count, as truth values along a dimension of so many."""
        shape = [1] * rank
        shape[dim] = self.rows[symbol]
        return self.call(aten.reshape.default, self.masks[symbol], shape)

    def only_valid(self, node: Node, nothing: float) -> Node:
        """Return an operand with a number, or false, in rows that do not count."""
        value: Node = self.of[node]
        for dim in self.ragged(node):
            valid = self.valid(str(example(node).shape[dim]), len(example(node).shape), dim)
            hidden = self.call(aten.logical_not.default, valid)
            value = self.call(aten.masked_fill.Scalar, value, hidden, nothing)
        return value

    def count(self, symbol: str, like: Node) -> Node:
        """Return how many rows count, in a node's dtype."""
        number = self.call(aten.sum.default, self.masks[symbol])
        return self.call(aten.to.dtype, number, example(like).dtype)


def _is_number(node: Node) -> bool:
    return isinstance(example(node), torch.SymInt | torch.SymBool | torch.SymFloat)


ASSERTIONS = ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size", "_assert_async")
COMPARED = (operator.ge, operator.le, operator.eq, operator.gt, operator.lt)
ARITHMETIC = (operator.mul, operator.add, operator.sub, operator.floordiv)

BY_ROW = frozenset((
    "linear", "mm", "matmul", "addmm", "embedding", "layer_norm", "rms_norm", "view", "reshape", "flatten",
    "unsqueeze", "squeeze", "transpose", "t", "permute", "expand", "clone", "detach", "contiguous", "to", "_to_copy",
    "alias", "type_as", "broadcast_tensors", "dropout", "one_hot", "zeros_like", "ones_like", "full_like",
    "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "empty_like", "rand_like", "randn_like", "bernoulli",
))  # fmt: skip
"""Operators whose results' rows are those of their operands, as the shapes show."""

ALONG = frozenset((
    "softmax", "log_softmax", "cumsum", "sort", "topk", "argmax", "argmin", "max", "min", "amax", "amin", "sum", "mean",
    "var", "std", "logsumexp", "linalg_vector_norm", "norm", "prod", "cat", "stack", "split", "split_with_sizes",
    "chunk", "unbind", "select", "slice", "gather", "glu", "any", "all", "flip", "cosine_similarity", "unflatten",
))  # fmt: skip
"""Operators along dimensions."""


def _reduced(self: _Spread, nothing: float = 0.0) -> Any:
    """Reduce rows that count; a mean is divided by how many these are."""
    node, name = self.node, packet(self.node)
    operand = bound(node)["self"]
    if self._keeps_rows(name):
        return self.checked(self.call(node.target, *self.mapped(node.args), **self.mapped(node.kwargs)))
    filling = bool(nothing) if example(operand).dtype is torch.bool else nothing
    value = self.only_valid(operand, filling)
    made = self.call(node.target, value, *self.mapped(node.args[1:]), **self.mapped(node.kwargs))
    return _of_count(self, made, operand) if name == "mean" else self.checked(made)


def _of_count(self: _Spread, mean: Node, operand: Node) -> Node:
    """Return the mean of rows that count from that of all, of which the others are zeros."""
    for dim in self.ragged(operand):
        symbol = str(example(operand).shape[dim])
        total = self.call(aten.mul.Tensor, mean, float(self.rows[symbol]))
        mean = self.call(aten.div.Tensor, total, self.count(symbol, mean))
    return self.checked(mean)


def _likelihood(self: _Spread) -> Any:
    """Let the loss of labels leave out those of rows that do not count."""
    arguments, (_, *rest) = bound(self.node), self.node.args
    target = arguments["target"]
    if example(target).is_floating_point() or not self.ragged(target):
        raise _Unspreadable
    labels = self.only_valid(target, arguments["ignore_index"])
    made = self.call(
        self.node.target,
        self.mapped(self.node.args[0]),
        labels,
        *self.mapped(rest[1:]),
        **self.mapped(self.node.kwargs),
    )
    return self.checked(made)


def _loss(self: _Spread) -> Any:
    """Take a loss of every element, and then what is made of these that count."""
    arguments = {name: self.mapped(value) for name, value in bound(self.node).items()}
    reduction, arguments["reduction"] = arguments["reduction"], 0
    operand = next(one for one in self.node.all_input_nodes if self.ragged(one))
    each = self.call(self.node.target, *_positional(self.node, arguments))
    if reduction == 0:
        return self.checked(each)
    for dim in self.ragged(operand):
        symbol, rank = str(example(operand).shape[dim]), len(example(operand).shape)
        hidden = self.call(aten.logical_not.default, self.valid(symbol, rank, dim))
        each = self.call(aten.masked_fill.Scalar, each, hidden, 0.0)
    if reduction == 2:
        return self.checked(self.call(aten.sum.default, each))
    return _of_count(self, self.call(aten.mean.default, each), operand)


def _of_sequences(self: _Spread) -> Any:
    """Let labels that a mask [n, s] selects lie in rows again, in which those that count come first."""
    arguments = {name: self.mapped(value) for name, value in bound(self.node).items()}
    (symbol,) = _symbols(bound(self.node)["targets"])
    mask, lengths = self.masks[symbol], arguments["target_lengths"]
    is_counted = isinstance(lengths, Node) and packet(lengths) == "sum" and _same(lengths.args[0], mask)
    if not is_counted or lengths.args[1:] not in (([-1],), ([1],)):
        raise _Unspreadable
    rows, extent = example(mask).shape
    labels = self.call(aten.reshape.default, arguments["targets"], [rows, extent, 1])
    places = self.call(aten.sub.Tensor, self.call(aten.cumsum.default, mask, 1), 1)
    is_there = self.call(aten.eq.Tensor, self.call(aten.unsqueeze.default, places, 2), self.constant(np.arange(extent)))
    hidden = self.call(aten.logical_not.default, self.call(aten.unsqueeze.default, mask, 2))
    labels = self.call(aten.masked_fill.Scalar, self.call(aten.mul.Tensor, labels, is_there), hidden, 0)
    arguments["targets"] = self.call(aten.sum.dim_IntList, labels, [1])
    target: Any = self.node.target
    loss = self.new.call_function(target, tuple(_positional(self.node, arguments)))
    loss.meta = dict(self.node.meta)  # of the same extents; PyTorch does not say which without data
    return loss


def _positional(node: Node, arguments: Mapping[str, Any]) -> list[Any]:
    schema = schema_of(node.target)
    assert schema is not None
    return [arguments[argument.name] for argument in schema.arguments]


def _index(self: _Spread) -> Any:
    """Read rows at the places that a mask shows, of a tensor that has them all."""
    arguments = bound(self.node)
    indices = [index for index in arguments["indices"] if index is not None]
    if self.ragged(arguments["self"]):
        raise _Unspreadable
    if any(example(index).dtype is torch.bool for index in indices):
        return self._selected("index", _symbols(self.node)[0])
    return self.checked(self.call(self.node.target, *self.mapped(self.node.args)))


def _index_put(self: _Spread) -> Any:
    """Write rows that count: by the mask itself, or with one more row for the others."""
    arguments = bound(self.node)
    indices, values, adds = arguments["indices"], self.of[arguments["values"]], arguments["accumulate"]
    value = self.of[arguments["self"]]
    if self.ragged(arguments["self"]) or any(index is None for index in indices):
        raise _Unspreadable
    if [example(index).dtype for index in indices] == [torch.bool]:
        if any(not _same(self.masks[symbol], self.of[indices[0]]) for symbol in _symbols(arguments["values"])):
            raise _Unspreadable
        return _put_by_mask(self, value, self.of[indices[0]], values, adds)
    symbols = {symbol for index in indices for symbol in _symbols(index)}
    if len(symbols) != 1 or any(len(example(index).shape) != 1 for index in indices):
        raise _Unspreadable
    (symbol,) = symbols
    count = example(value).shape[0]
    more = self.call(aten.cat.default, [value, self.call(aten.slice.Tensor, value, 0, 0, 1)])
    others = self.call(aten.logical_not.default, self.valid(symbol, 1, 0))
    first = self.call(aten.masked_fill.Scalar, self.of[indices[0]], others, count)
    put = self.call(aten.index_put.default, more, [first, *(self.of[index] for index in indices[1:])], values, adds)
    return self.checked(self.call(aten.slice.Tensor, put, 0, 0, count))


def _same(one: Any, other: Any) -> bool:
    """Return True for the same node, or the same operator of the same."""
    if not isinstance(one, Node) or not isinstance(other, Node) or one is other:
        return bool(one == other) and type(one) is type(other)
    if one.op != "call_function" or one.target is not other.target or one.kwargs != other.kwargs:
        return False
    is_random = isinstance(one.target, OpOverload) and torch.Tag.nondeterministic_seeded in one.target.tags
    pairs = [leaves(pair) for pair in zip(one.args, other.args, strict=False)]
    return not is_random and len(one.args) == len(other.args) and all(_same(*pair) for pair in pairs)


def _put_by_mask(self: _Spread, value: Node, mask: Node, values: Node, adds: bool) -> Node:
    """Write rows where a mask of the first dimensions is true."""
    shape, rank = list(example(value).shape), len(example(mask).shape)
    wide = self.call(aten.reshape.default, mask, [*example(mask).shape, *[1] * (len(shape) - rank)])
    if len(example(values).shape) > len(shape) - rank:
        values = self.call(aten.expand.default, values, [prod(example(mask).shape), *shape[rank:]])
        values = self.call(aten.reshape.default, values, shape)
    values = self.call(aten.add.Tensor, value, values) if adds else values
    return self.checked(self.call(aten.where.self, wide, values, value))


def _added(self: _Spread) -> Any:
    """Add rows up where their indices say; those that do not count are zeros."""
    arguments = bound(self.node)
    source = "source" if "source" in arguments else "src"
    if self.ragged(arguments["self"]):
        raise _Unspreadable
    given = {name: self.mapped(value) for name, value in arguments.items()}
    given[source] = self.only_valid(arguments[source], 0.0)
    positional = [value for name, value in given.items() if name != "alpha"]
    return self.checked(
        self.call(self.node.target, *positional, **({"alpha": given["alpha"]} if "alpha" in given else {}))
    )


def _filled(nothing: float) -> Callable[[_Spread], Any]:
    return lambda self: _reduced(self, nothing)


def _table(rule: Callable[[_Spread], Any], names: Iterable[str]) -> dict[str, Callable[[_Spread], Any]]:
    return dict.fromkeys(names, rule)


RULES: Mapping[str, Callable[[_Spread], Any]] = {
    **_table(_filled(0.0), ("sum", "mean", "any")),
    **_table(_filled(1.0), ("all", "prod")),
    **_table(_filled(-inf), ("amax", "max", "logsumexp")),
    **_table(_filled(inf), ("amin", "min")),
    **_table(_likelihood, ("cross_entropy_loss", "nll_loss", "nll_loss_nd")),
    **_table(
        _loss,
        (
            "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
            "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "hinge_embedding_loss",
        ),
    ),
    **_table(_added, ("index_add", "scatter_add")),
    "ctc_loss": _of_sequences,
    "index": _index,
    "index_put": _index_put,
}  # fmt: skip
"""By the operator's name: how it works on rows of which not all count."""
