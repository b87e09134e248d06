"""Canonical order of a graph's nodes, which depends only on its structure, and the kernel classes that follow from it.

Kernel prices depend on neighbouring kernels, and layers are detected by repetition, so graphs are put into this order
before they are planned or priced. In the forward pass the unit is an operator with its parts, such as a norm with its
mean. A cluster is a tree of units in which each unit but the root has exactly one reader, with the units that depend on
no weight and that it alone reads, such as a mask of labels. A cluster comes after the clusters it reads, in the order
of its operands; before these come the operands of the one with the longest path, so that an encoder precedes the
decoder. Within a cluster, units are in the order in which they are read; a unit that may be fused with its reader
stands next to it. The backward pass follows in reverse order, and the rest by distance from the updates.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any, Literal

import tdl
from planner.graph.chain import of_samples
from planner.graph.facts import phases
from planner.graph.infer import describe
from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import UPDATE, accumulates
from planner.grouping import grouped
from planner.layout.geometry import PRODUCTS
from tdl.traits import Function, traits_of

LAST = 1 << 60
"""Position of nodes that belong to no forward node, such as the step count."""

UNMADE = -1, 0
"""Position of tensors that no node produces."""

MOST = 1 << 14
Key = tuple[Any, ...]


def in_structural_order(graph: Graph) -> Graph:
    """Return the graph with its nodes, tensors and updates in the canonical order.

    >>> import planner
    >>> from dataclasses import replace
    >>> graph = in_structural_order(planner.model("mlp-2-16", batch=8))
    >>> first, second, *rest = graph.nodes[-2:]
    >>> in_structural_order(replace(graph, nodes=(*graph.nodes[:-2], second, first))) == graph
    True
    """
    nodes = _Ordering(graph).nodes()
    names = dict.fromkeys((*(name for node in nodes for name in (*node.inputs, *node.outputs)), *graph.tensors))
    places = {name: place for place, name in enumerate(names)}
    return replace(
        graph,
        tensors={name: graph.tensors[name] for name in names},
        nodes=nodes,
        updates={old: graph.updates[old] for old in sorted(graph.updates, key=places.__getitem__)},
        accumulated=tuple(sorted(graph.accumulated, key=places.__getitem__)),
    )


def parts_of_operators(nodes: Iterable[Node]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a forward node that computes a part of another node's operator, and that node's name."""
    forward = [node for node in nodes if node.forward is None]
    makers = {name: node.name for node in forward for name in node.outputs}
    for node in forward:
        operator = tdl.catalog[node.op]
        if operator.parts:
            operands = zip(operator.operands, node.inputs, strict=True)
            yield from (
                (makers[name], node.name) for operand, name in operands if operand in operator.parts and name in makers
            )


class _Ordering:
    """The order of the whole graph; backward nodes are ordered by the numbers of their forward nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._nodes = graph, {node.name: node for node in graph.nodes}
        self._makers = {name: node for node in graph.nodes for name in node.outputs}
        self._samples = of_samples(graph)
        self._numbers = _Forward(graph, self._makers, self._samples).numbers()
        self._first_use: dict[str, int] = {}
        for name, number in self._numbers.items():
            for operand in self._nodes[name].inputs:
                self._first_use.setdefault(operand, number)
        self._distances: dict[str, int] = {}
        for node in reversed(graph.nodes):
            distance = self._distances.setdefault(node.name, 0) + 1
            for maker in self._makers_of(node):
                self._distances[maker.name] = max(self._distances.get(maker.name, 0), distance)
        self._read_backward = {name for node in graph.nodes if node.forward is not None for name in node.inputs}
        self._place: dict[str, int] = {}
        self._made: dict[str, tuple[int, int]] = {}

    def _makers_of(self, node: Node) -> list[Node]:
        return [self._makers[name] for name in dict.fromkeys(node.inputs) if name in self._makers]

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes: the next one is always the executable node with the smallest key."""
        result: list[Node] = []
        for name in _by_keys({name: self._makers_of(node) for name, node in self._nodes.items()}, self._key):
            node = self._nodes[name]
            self._made |= {output: (len(result), number) for number, output in enumerate(node.outputs)}
            result.append(node)
        return tuple(result)

    def _key(self, name: str) -> Key:
        """Return the key of a node whose operands are available; also record the forward position of its results."""
        node = self._nodes[name]
        tie = (
            [self._made.get(operand, UNMADE) for operand in node.inputs],
            _written(describe(node, self._graph.tensors)),
        )
        if name in self._numbers:
            return 0, self._numbers[name]
        if node.forward is not None:
            forward = self._nodes[node.forward]
            number, known = self._numbers.get(node.forward, 0), (*forward.inputs, *forward.outputs)
            self._place |= dict.fromkeys(node.outputs, number)
            is_sum = tdl.catalog[node.op].category not in PRODUCTS and self._read_backward.isdisjoint(node.outputs)
            operands = sorted(-known.index(operand) for operand in node.inputs if operand in known)
            return 1, -number, not is_sum, operands, tie
        if accumulates(node, self._graph.tensors):
            return 1, -len(self._nodes), True, [], tie
        places = (self._place.get(operand, self._first_use.get(operand, LAST)) for operand in node.inputs)
        place = min(places, default=LAST)
        self._place |= dict.fromkeys(node.outputs, place)
        aside = not self._samples.isdisjoint(node.outputs) and self._graph.tensors[node.outputs[0]].role != "gradient"
        return (0, place, [], tie) if aside and self._is_forward(node) else (2, -self._distances[name], place, tie)

    def _is_forward(self, node: Node) -> bool:
        """Return True if a node that no metric needs reads only the forward pass, as a moving average does."""
        return all(maker.name in self._numbers for maker in self._makers_of(node))


class _Forward:
    """Units that the metrics depend on, named by their operators' nodes, in the order in which metrics need them."""

    def __init__(self, graph: Graph, makers: Mapping[str, Node], samples: frozenset[str]) -> None:
        self._makers, self._samples = makers, samples
        nodes = {node.name: node for node in graph.nodes}
        reads = {name: [makers[o].name for o in node.inputs if o in makers] for name, node in nodes.items()}
        sinks = [makers[name].name for name in graph.metrics.values() if name in makers]
        self._nodes = {name: nodes[name] for name in _behind(sinks, reads)}
        self._unit = {name: name for name in self._nodes} | dict(parts_of_operators(self._nodes.values()))
        self._members = grouped((self._unit[name], node) for name, node in self._nodes.items())
        self._reads = {unit: self._read_by(unit) for unit in self._members}
        self._readers = grouped((other, unit) for unit, others in self._reads.items() for other in others)
        self._sinks = list(dict.fromkeys(self._unit[sink] for sink in sinks))
        self._post = list(_behind(self._sinks, self._reads))
        weights = of_samples(graph, "weight")
        self._weighted = {unit for unit in self._members if not weights.isdisjoint(nodes[unit].outputs)}

    def _read_by(self, unit: str) -> list[str]:
        """Return the units that one reads, in the order of its operator's operands, then of its parts'."""
        nodes = (self._nodes[unit], *self._members[unit])
        makers = (self._makers[name].name for node in nodes for name in node.inputs if name in self._makers)
        return [other for other in dict.fromkeys(self._unit[maker] for maker in makers) if other != unit]

    def numbers(self) -> Mapping[str, int]:
        """Return the number of every node, ascending."""
        order: list[str] = []
        clusters = self._clusters()
        for root in self._in_order(clusters):
            within = set(clusters[root])
            reads = {
                unit: sorted((other for other in self._reads[unit] if other in within), key=self._weighted.__contains__)
                for unit in clusters[root]
            }
            for unit in _behind([unit for unit in clusters[root] if unit == root or not self._may_wait(unit)], reads):
                order += [node.name for node in self._members[unit]]
        return {name: number for number, name in enumerate(order)}

    def _clusters(self) -> Mapping[str, list[str]]:
        """Return the units of every cluster, by its root."""
        roots: dict[str, str] = {}
        for unit in reversed(self._post):
            readers = self._readers.get(unit, [])
            readers = readers if unit in self._weighted else list({roots[reader] for reader in readers})
            alone = len(readers) == 1 and unit not in self._sinks
            roots[unit] = roots[readers[0]] if alone else unit
        return grouped((roots[unit], unit) for unit in self._post)

    def _in_order(self, clusters: Mapping[str, Sequence[str]]) -> Iterable[str]:
        """Return the clusters' roots, operands first; clusters that no sample affects come before all others."""
        root_of = {unit: root for root, units in clusters.items() for unit in units}
        reads = {
            root: [r for r in dict.fromkeys(root_of[o] for unit in units for o in self._reads[unit]) if r != root]
            for root, units in clusters.items()
        }
        depths: dict[str, int] = {}
        for unit in self._post:
            depths[unit] = 1 + max((depths[other] for other in self._reads[unit]), default=0)
        done: dict[str, None] = {}

        def wanted(root: str) -> Iterator[str]:
            for other in sorted(reads[root], key=lambda other: -depths[other]):
                if other not in done:
                    yield from reads[other]
            yield from reads[root]

        constant = [root for root in clusters if self._samples.isdisjoint(self._nodes[root].outputs)]
        for sink in (*constant, *self._sinks):
            waiting = [(sink, wanted(sink))]
            while waiting:
                root, others = waiting[-1]
                following = next((other for other in others if other not in done), None)
                if following is None:
                    done.setdefault(root)
                    waiting.pop()
                else:
                    waiting.append((following, wanted(following)))
        return done

    def _may_wait(self, unit: str) -> bool:
        """Return True if a unit may be fused with its reader: no product or its bias, and no operator with parts."""
        node = self._nodes[unit]
        changing = self._samples.intersection(node.inputs)
        alone = (self._nodes[other].op for other in self._reads[unit] if len(self._readers[other]) == 1)
        is_bias = len(changing) == 1 < len(node.inputs) and tdl.catalog[node.op].category == "elementwise"
        is_bias = is_bias and any(tdl.catalog[op].category in PRODUCTS for op in alone)
        return tdl.catalog[node.op].category not in PRODUCTS and not is_bias and len(self._members[unit]) == 1


def _behind(sinks: Sequence[str], reads: Mapping[str, Sequence[str]]) -> dict[str, None]:
    """Return everything that the sinks need in depth-first postorder."""
    done: dict[str, None] = {}
    waiting = [(sink, False) for sink in reversed(sinks)]
    seen: set[str] = set()
    while waiting:
        name, is_last = waiting.pop()
        if is_last:
            done[name] = None
        elif name not in seen:
            seen.add(name)
            waiting.append((name, True))
            waiting += [(other, False) for other in reversed(reads[name])]
    return done


def _by_keys(makers: Mapping[str, Sequence[Node]], key: Any) -> Iterator[str]:
    """Yield names; the next one is always the smallest key among those whose producers have been yielded."""
    missing = {name: len(others) for name, others in makers.items()}
    readers = grouped((other.name, name) for name, others in makers.items() for other in others)
    ready = [(key(name), name) for name, count in missing.items() if not count]
    heapify(ready)
    while ready:
        _, name = heappop(ready)
        yield name
        for reader in readers.get(name, ()):
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, (key(reader), reader))


@lru_cache(MOST)
def _written(description: tdl.Description) -> Hashable:
    return tuple(str(placed.value) for placed in description.outputs)


# Kernel classes, for comparing profiles with predictions.


KernelClass = Literal[
    "product", "attention", "normalization", "reduction", "element-wise", "movement", "optimizer", "other"
]

OF_CATEGORY: Mapping[str, KernelClass] = {
    "matmul": "product", "convolution": "product", "reduction": "reduction", "elementwise": "element-wise",
    "other": "movement",
}  # fmt: skip
"""Classes by operator category, for operators that are neither attention nor a normalization."""


def class_of(category: str, function: Function | None, *, attends: bool) -> KernelClass:
    """Return the class of a kernel that is not part of the update.

    `function` is that of the kernel's operator, or of the operator whose gradient it computes.

    >>> class_of("elementwise", "norm", attends=False), class_of("matmul", None, attends=False)
    ('normalization', 'product')
    """
    if attends:
        return "attention"
    if function in {"norm", "root mean square norm"}:
        return "normalization"
    return OF_CATEGORY[category]


def kernel_classes(graph: Graph) -> Mapping[str, KernelClass]:
    """Return the class of every node of a graph, by name."""
    nodes, phase = {node.name: node for node in graph.nodes}, phases(graph)
    operators = dict(parts_of_operators(graph.nodes))

    def of(node: Node) -> KernelClass:
        forward = nodes[node.forward or node.name]
        computed = nodes[operators.get(forward.name, forward.name)]
        function = traits_of(describe(computed, graph.tensors)).function
        attends = traits_of(describe(node, graph.tensors)).attended is not None
        return class_of(tdl.catalog[node.op].category, function, attends=attends)

    return {name: "optimizer" if phase[name] == UPDATE else of(node) for name, node in nodes.items()}
