"""Spread masked selections: rows stay in place, and operators that combine rows skip those that the mask hides.

In a trace, the number of rows of a masked selection is an unknown symbol such as u0. Here, such a dimension becomes as
long as the mask; operators that add up, write or average rows are told which rows count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from planner.errors import GraphError
from planner.pytorch.capture.export_errors import silent
from planner.pytorch.capture.trace import TracedModule
from planner.pytorch.nodes import bound, example, packet
from planner.pytorch.private import fake_mode_of, schema_of
from rare_operators.masked_rows import Spread, Unspreadable, same, symbols_of

aten = torch.ops.aten


def spread_selections(trace: TracedModule) -> bool:
    """Spread masked selections; return False, leaving the trace unchanged, if an operator does not allow it."""
    module = trace.program.graph_module
    if not any(symbols_of(node) for node in module.graph.nodes):
        return False
    spread = Spread(module.graph, RULES)
    try:
        with fake_mode_of([example(node) for node in module.graph.nodes]), torch.no_grad(), silent():
            graph = spread.graph()
    except (Unspreadable, RuntimeError, TypeError, ValueError, IndexError, GraphError):
        return False
    for name, content in spread.constants.items():
        module.register_buffer(name, torch.from_numpy(np.ascontiguousarray(content)), persistent=False)
    module.graph = graph
    return True


def _reduced(self: Spread, nothing: float = 0.0) -> Any:
    """Reduce the rows that count; a mean is divided by their number."""
    node, name = self.node, packet(self.node)
    operand = bound(node)["self"]
    if self.keeps_rows(name):
        return self.checked(self.call(node.target, *self.mapped(node.args), **self.mapped(node.kwargs)))
    filling = bool(nothing) if example(operand).dtype is torch.bool else nothing
    value = self.only_valid(operand, filling)
    result = self.call(node.target, value, *self.mapped(node.args[1:]), **self.mapped(node.kwargs))
    return _of_count(self, result, operand) if name == "mean" else self.checked(result)


def _of_count(self: Spread, mean: Node, operand: Node) -> Node:
    """Return the mean over the rows that count, given the mean over all rows with zeros elsewhere."""
    for dim in self.ragged(operand):
        symbol = str(example(operand).shape[dim])
        total = self.call(aten.mul.Tensor, mean, float(self.rows[symbol]))
        mean = self.call(aten.div.Tensor, total, self.count(symbol, mean))
    return self.checked(mean)


def _likelihood(self: Spread) -> Any:
    """Make the loss ignore labels of rows that do not count."""
    arguments, (_, *rest) = bound(self.node), self.node.args
    target = arguments["target"]
    if example(target).is_floating_point() or not self.ragged(target):
        raise Unspreadable
    labels = self.only_valid(target, arguments["ignore_index"])
    loss = self.call(
        self.node.target,
        self.mapped(self.node.args[0]),
        labels,
        *self.mapped(rest[1:]),
        **self.mapped(self.node.kwargs),
    )
    return self.checked(loss)


def _loss(self: Spread) -> Any:
    """Compute the loss of every element, then reduce those that count."""
    arguments = {name: self.mapped(value) for name, value in bound(self.node).items()}
    reduction, arguments["reduction"] = arguments["reduction"], 0
    operand = next(node for node in self.node.all_input_nodes if self.ragged(node))
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


def _of_sequences(self: Spread) -> Any:
    """Arrange labels selected by a mask [n, s] in rows again, with those that count first."""
    arguments = {name: self.mapped(value) for name, value in bound(self.node).items()}
    (symbol,) = symbols_of(bound(self.node)["targets"])
    mask, lengths = self.masks[symbol], arguments["target_lengths"]
    while packet(lengths) == "to":
        lengths = lengths.args[0]
    is_counted = packet(lengths) == "sum" and same(lengths.args[0], mask)
    if not is_counted or lengths.args[1:] not in (([-1],), ([1],)):
        raise Unspreadable
    rows, extent = example(mask).shape
    labels = self.call(aten.reshape.default, arguments["targets"], [rows, extent, 1])
    places = self.call(aten.sub.Tensor, self.call(aten.cumsum.default, mask, 1), 1)
    is_there = self.call(aten.eq.Tensor, self.call(aten.unsqueeze.default, places, 2), self.constant(np.arange(extent)))
    hidden = self.call(aten.logical_not.default, self.call(aten.unsqueeze.default, mask, 2))
    labels = self.call(aten.masked_fill.Scalar, self.call(aten.mul.Tensor, labels, is_there), hidden, 0)
    arguments["targets"] = self.call(aten.sum.dim_IntList, labels, [1])
    return self.call(self.node.target, *_positional(self.node, arguments))


def _positional(node: Node, arguments: Mapping[str, Any]) -> list[Any]:
    schema = schema_of(node.target)
    assert schema is not None
    return [arguments[argument.name] for argument in schema.arguments]


def _index(self: Spread) -> Any:
    """Read the rows that a mask selects from a tensor with all rows."""
    arguments = bound(self.node)
    indices = [index for index in arguments["indices"] if index is not None]
    if self.ragged(arguments["self"]):
        raise Unspreadable
    if len(indices) == 1 and example(indices[0]).dtype is torch.bool:
        return self.selected("index", symbols_of(self.node)[0])
    places = _places(self, arguments["indices"], symbols_of(self.node)[0])
    return self.checked(self.call(self.node.target, self.of[arguments["self"]], places))


def _places(self: Spread, indices: Iterable[Node | None], symbol: str) -> list[Node | None]:
    """Return indices in the copy, with the mask of all rows replaced by the indices of all rows."""
    places: list[Node | None] = []
    for index in indices:
        if index is None or example(index).dtype is not torch.bool:
            places.append(None if index is None else self.places(index))
        elif same(self.masks[symbol], self.of[index]):
            places += self.columns(example(self.of[index]).shape)
        else:
            raise Unspreadable
    return places


def _index_put(self: Spread) -> Any:
    """Write the rows that count: by the mask itself, or with an extra row that takes the others."""
    arguments = bound(self.node)
    indices, values, adds = arguments["indices"], self.of[arguments["values"]], arguments["accumulate"]
    value = self.of[arguments["self"]]
    if self.ragged(arguments["self"]) or any(index is None for index in indices):
        raise Unspreadable
    if [example(index).dtype for index in indices] == [torch.bool]:
        if any(not same(self.masks[symbol], self.of[indices[0]]) for symbol in symbols_of(arguments["values"])):
            raise Unspreadable
        return _put_by_mask(self, value, self.of[indices[0]], values, adds)
    symbols = {symbol for index in indices for symbol in symbols_of(index)}
    if len(symbols) != 1:
        raise Unspreadable
    (symbol,) = symbols
    first, *rest = _places(self, indices, symbol)
    if any(index is None or len(example(index).shape) != 1 for index in (first, *rest)):
        raise Unspreadable
    count = example(value).shape[0]
    more = self.call(aten.cat.default, [value, self.call(aten.slice.Tensor, value, 0, 0, 1)])
    others = self.call(aten.logical_not.default, self.valid(symbol, 1, 0))
    first = self.call(aten.masked_fill.Scalar, first, others, count)
    put = self.call(aten.index_put.default, more, [first, *rest], values, adds)
    return self.checked(self.call(aten.slice.Tensor, put, 0, 0, count))


def _put_by_mask(self: Spread, value: Node, mask: Node, values: Node, adds: bool) -> Node:
    """Write rows where a mask of the first dimensions is true."""
    shape, rank = list(example(value).shape), len(example(mask).shape)
    wide = self.call(aten.reshape.default, mask, [*example(mask).shape, *[1] * (len(shape) - rank)])
    if len(example(values).shape) > len(shape) - rank:
        values = self.call(aten.expand.default, values, [prod(example(mask).shape), *shape[rank:]])
        values = self.call(aten.reshape.default, values, shape)
    values = self.call(aten.add.Tensor, value, values) if adds else values
    return self.checked(self.call(aten.where.self, wide, values, value))


def _added(self: Spread) -> Any:
    """Add rows at their indices; rows that do not count become zeros."""
    arguments = bound(self.node)
    source = "source" if "source" in arguments else "src"
    if self.ragged(arguments["self"]):
        raise Unspreadable
    given = {name: self.mapped(value) for name, value in arguments.items()}
    given["index"] = self.places(arguments["index"])
    given[source] = self.only_valid(arguments[source], 0.0)
    positional = [value for name, value in given.items() if name != "alpha"]
    return self.checked(
        self.call(self.node.target, *positional, **({"alpha": given["alpha"]} if "alpha" in given else {}))
    )


RULES: Mapping[str, Callable[[Spread], Any]] = {
    **dict.fromkeys(("sum", "mean", "any"), _reduced),
    **dict.fromkeys(("all", "prod"), partial(_reduced, nothing=1.0)),
    **dict.fromkeys(("amax", "max", "logsumexp"), partial(_reduced, nothing=-inf)),
    **dict.fromkeys(("amin", "min"), partial(_reduced, nothing=inf)),
    **dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd"), _likelihood),
    **dict.fromkeys((
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "hinge_embedding_loss",
    ), _loss),
    **dict.fromkeys(("index_add", "scatter_add"), _added),
    "planner::ctc_loss": _of_sequences,
    "index": _index,
    "index_put": _index_put,
}  # fmt: skip
"""By operator name: how it works on rows that do not all count."""
