"""Terms that are summed before they move: the terms of a gradient, and of any sum that is their only reader.

The node that reads terms takes them as each worker computed them, so that only the sum is reduced. Examples are the
gradients of a weight used several times (an embedding that is also the output layer, timesteps, micro-batches), and
tensors that become a weight's gradient after the sum over samples (a table of positions).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import tdl
from planner.graph.infer import describe
from planner.graph.ir import FLOATING, Graph, Node, Tensor


def operands_as_terms(graph: Graph) -> Mapping[str, frozenset[int]]:
    """Return the nodes that may read terms under any placements, each with the operands that are terms, by name.

    Such a node either adds up its operands, or ends the backward pass (only updates read its result) with one
    floating-point operand, in which it is linear. Each of these operands is a sum, or computed from terms in turn, and
    has no other reader.
    """
    readers, operands = _readers(graph), dict[str, frozenset[int]]()
    summed: set[str] = set()
    for node in graph.nodes:
        description = describe(node, graph.tensors)
        numbers = frozenset(n for n, name in enumerate(node.inputs) if graph.tensors[name].dtype in FLOATING)
        terms = {node.inputs[n] for n in numbers if len(readers[node.inputs[n]]) == 1}
        adds = description.adds_operands or (len(numbers) == 1 and _ends_backward_pass(node, readers))
        if adds and terms and len(terms) == len(numbers) and terms <= summed and description.linear(numbers):
            operands[node.name] = numbers
            summed.update(node.outputs)
        outputs = zip(node.outputs, description.outputs, strict=True)
        summed.update(name for name, how in outputs if how.reducer == "Sum")
    return operands


def tensors_read_as_terms(graph: Graph) -> frozenset[str]:
    """Return the tensors read as terms."""
    operands = operands_as_terms(graph)
    return frozenset(node.inputs[n] for node in graph.nodes for n in operands.get(node.name, ()))


def accumulates(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """Return True if a node adds up any number of tensors, as `add_n` does."""
    return tdl.catalog[node.op].variadic and describe(node, tensors).adds_operands


def _readers(graph: Graph) -> Mapping[str, list[Node | None]]:
    """Return the readers of each tensor, one entry per operand; None stands for an update or a metric."""
    readers = defaultdict[str, list[Node | None]](list)
    for node in graph.nodes:
        for name in node.inputs:
            readers[name].append(node)
    for name in (*graph.updates.values(), *graph.metrics.values()):
        readers[name].append(None)
    return readers


def _ends_backward_pass(node: Node, readers: Mapping[str, list[Node | None]]) -> bool:
    after = [reader for name in node.outputs for reader in readers[name]]
    return node.forward is not None and all(reader is not None and reader.forward is None for reader in after)
