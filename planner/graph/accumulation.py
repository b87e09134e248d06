"""Terms that are added up before anything of them moves: those of a gradient, and of any sum that alone reads them.

The node that reads them takes them as they were computed, every worker its own, so that only the sum is reduced. Such
are the gradients of a weight that is used several times (an embedding that is the output layer, too, timesteps,
micro-batches), and what becomes a weight's gradient after the sum over samples (that of a table of positions).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import tdl
from planner.graph.infer import describe
from planner.graph.ir import FLOATING, Graph, Node, Tensor


def operands_as_terms(graph: Graph) -> Mapping[str, frozenset[int]]:
    """Return the nodes that may read terms under any placements, and through which operands, by name.

    Such a node adds up its operands, or ends the backward pass (only updates read its result) with one operand of
    floating-point numbers, in which it is linear. Each of these is a sum, or made of terms in turn, that nobody else
    reads.
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
    """Return the terms: the tensors that these nodes read through these operands."""
    operands = operands_as_terms(graph)
    return frozenset(node.inputs[n] for node in graph.nodes for n in operands.get(node.name, ()))


def accumulates(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """True if a node adds up any number of tensors, as `add_n` does."""
    return tdl.catalog[node.op].variadic and describe(node, tensors).adds_operands


def _readers(graph: Graph) -> Mapping[str, list[Node | None]]:
    """Return who reads each tensor, once for every operand; None stands for what is kept of it."""
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
