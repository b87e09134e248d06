"""The sizes of a transformer, read from its training graph, for engines that build the model themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

import tdl
from planner.graph.facts import copies_of_weights
from planner.graph.infer import describe
from planner.graph.ir import Graph, Node, Tensor, array_of
from tdl.expr import Call, Element, walk
from tdl.traits import Traits, traits_of

NORMS: Mapping[str | None, str] = {"norm": "LayerNorm", "root mean square norm": "RMSNorm"}
ACTIVATIONS = ("gelu", "silu", "relu")
POINTS = np.linspace(-3.0, 3.0, 13)
TOLERANCE = 1e-3
"""Points at which activations are compared, and the tolerance, which admits approximations of gelu."""

QUERIES, MATRIX = 3, 4
"""Number of operands of attention without a bias, and of dimensions of its scores, [batch, heads, queries, keys]."""

STRETCH = 8
"""Factor by which Llama 3.1 divides the slowest rotary frequencies."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder or encoder of identical blocks: its sizes, and the kinds of its parts.

    `groups` is the number of key and value heads, `hidden` the width of the feed-forward layers, and `positions`
    "learned", "rope", "alibi" or "none". `rotary_base` and `stretched` (Llama 3.1's frequencies) apply to "rope".
    `experts` is 0 for dense layers; otherwise every token chooses `chosen` of them, and an expert's capacity is
    `capacity` times its equal share.
    """

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int
    sequence: int
    norm: str
    activation: str
    gated: bool
    positions: str
    tied: bool
    bias: bool
    qkv_bias: bool
    causal: bool
    head_width: int
    rotary_base: float = 0.0
    stretched: bool = False
    experts: int = 0
    chosen: int = 0
    capacity: float = 0.0

    @property
    def parameters(self) -> int:
        """Number of elements of all weights of such a model."""
        width, inner = self.width, self.heads * self.head_width
        keys = 2 * self.groups * self.head_width
        attention = width * (2 * inner + keys) + self.qkv_bias * (inner + keys) + self.bias * width
        copies = max(1, self.experts)
        fully_connected = copies * width * self.hidden * (3 if self.gated else 2) + width * self.experts
        fully_connected += self.bias * (self.hidden * (2 if self.gated else 1) + width)
        norm = width * (2 if self.norm == "LayerNorm" else 1)
        normed = norm if self.positions == "alibi" else 0  # BLOOM normalizes its embeddings
        embeddings = self.vocabulary * width * (1 if self.tied else 2)
        embeddings += self.sequence * width if self.positions == "learned" else 0
        return self.layers * (attention + fully_connected + 2 * norm) + norm + normed + embeddings


def transformer_of(graph: Graph) -> Transformer | None:
    """Return the sizes of the transformer that a graph trains; None if it is not one, or has other weights.

    >>> import planner
    >>> transformer_of(planner.model("gpt2", batch=8)).parameters
    124439808
    >>> transformer_of(planner.model("mlp-2-16", batch=8)) is None
    True
    """
    transformer = _Reading(graph).transformer()
    trained = sum(tensor.elements for tensor in graph.tensors.values() if tensor.is_parameter)
    return transformer if transformer is not None and transformer.parameters == trained else None


class _Reading:
    """One graph's forward pass, with the node that computes each tensor."""

    def __init__(self, graph: Graph) -> None:
        self._tensors = graph.tensors
        copies = copies_of_weights(graph)
        casts = {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.outputs[0] in copies}
        updated = {*graph.updates.values(), *casts}
        self._nodes = [
            replace(node, inputs=tuple(casts.get(name, name) for name in node.inputs))
            for node in graph.nodes
            if node.forward is None and updated.isdisjoint(node.outputs)
        ]
        self._descriptions = {node.name: describe(node, graph.tensors) for node in self._nodes}
        self._activations: dict[int, str] = {}
        self._maker: Mapping[str, Node] = {name: node for node in self._nodes for name in node.outputs}

    def transformer(self) -> Transformer | None:
        """Return the transformer; None if a part is missing, or attention differs between layers."""
        tables = (self._table(node) for node in self._nodes)
        table, sequence = next((read for read in tables if read), (None, 0))
        inner = [node for node in self._nodes if self._activation(node)]
        norms = {NORMS[function] for node in self._nodes if (function := self._traits(node).function) in NORMS}
        cores = [node for node in self._nodes if self._traits(node).attended or self._is_stored_attention(node)]
        if table is None or not inner or len(norms) != 1 or not cores or len({*map(self._shape, cores)}) != 1:
            return None
        (vocabulary, width), hidden = table.shape, self._shape(inner[0])[-1]
        heads, head_width = self._heads(cores[0])
        region = [self._weights(node) for node in self._before(cores[0])]
        projected = sum(
            weight.elements for weights in region for weight in weights if weight.elements > width * head_width
        )
        experts, chosen, capacity = self._experts(sequence)
        positions, base, stretched = self._positions((sequence, width), head_width)
        return Transformer(
            layers=len(cores),
            width=width,
            heads=heads,
            groups=max(1, (projected // (width * head_width) - heads) // 2),
            hidden=hidden,
            vocabulary=vocabulary,
            sequence=sequence,
            norm=norms.pop(),
            activation=self._activation(inner[0]),
            gated=any(self._is_of_two("multiply", n) and inner[0].outputs[0] in n.inputs for n in self._nodes),
            positions=positions,
            tied=sum(table.name in node.inputs for node in self._nodes) > 1,
            bias=any(weight.shape == (hidden,) for node in self._nodes for weight in self._weights(node)),
            qkv_bias=any(self._is_of_two("add", n) and self._weights(n) for n in self._before(cores[0])),
            causal=any(self._traits(node).is_causal for node in self._nodes),
            head_width=head_width,
            rotary_base=base,
            stretched=stretched,
            experts=experts,
            chosen=chosen,
            capacity=capacity,
        )

    def _shape(self, node: Node) -> tuple[int, ...]:
        return self._tensors[node.outputs[0]].shape

    def _weights(self, node: Node) -> list[Tensor]:
        return [self._tensors[name] for name in node.inputs if self._tensors[name].role == "weight"]

    def _traits(self, node: Node) -> Traits:
        return traits_of(self._descriptions[node.name])

    def _table(self, node: Node) -> tuple[Tensor, int] | None:
        """Return the embedding table that a node looks up, and the length of its sequences.

        None if it looks up none.
        """
        operand, shape = self._traits(node).table, self._shape(node)
        return None if operand is None or len(shape) == 1 else (self._tensors[node.inputs[operand]], shape[-2])

    def _activation(self, node: Node) -> str:
        """Return which activation a node computes, judged by its values; "" for none."""
        description = self._descriptions[node.name]
        if len(node.inputs) != 1 or not self._shape(node) or not description.is_elementwise or self._weights(node):
            return ""
        if id(description) not in self._activations:
            points = POINTS.reshape(-1, *(1,) * (len(self._shape(node)) - 1))
            (values,) = description.evaluate((points,), node.attrs)
            known = ((name, tdl.catalog[name].describe((points.ndim,)).evaluate((points,))[0]) for name in ACTIVATIONS)
            same = (name for name, expected in known if np.allclose(values, expected, atol=TOLERANCE))
            self._activations[id(description)] = next(same, "")
        return self._activations[id(description)]

    def _is_of_two(self, function: str, node: Node) -> bool:
        """Return True if a node applies `function` ("add" or "multiply") to two operands, element by element."""
        match [placed.value for placed in self._descriptions[node.name].outputs]:
            case [Call(name, (Element(), Element()))]:
                return name == function
        return False

    def _is_stored_attention(self, node: Node) -> bool:
        """Return True if a node is the softmax of scores [batch, heads, queries, keys]."""
        shape = self._shape(node)
        return self._traits(node).function == "softmax" and len(shape) == MATRIX and shape[2] == shape[3]

    def _before(self, core: Node) -> Iterator[Node]:
        """Yield the nodes between attention and the norm, or the embedding, before it."""
        waiting, seen = [*core.inputs], set[str]()
        while waiting:
            node = self._maker.get(waiting.pop())
            if node is not None and node.name not in seen and not self._begins(node):
                seen.add(node.name)
                waiting += node.inputs
                yield node

    def _begins(self, node: Node) -> bool:
        """Return True if a node is a norm or an embedding, after which a block begins."""
        traits = self._traits(node)
        return traits.function in NORMS or traits.table is not None

    def _heads(self, core: Node) -> tuple[int, int]:
        """Return the number of query heads, and the width of a head."""
        attended = self._traits(core).attended
        if attended is not None:
            return self._shape(core)[1], self._tensors[core.inputs[attended.queries]].shape[attended.dimension]
        for node in self._before(core):
            if self._traits(node).contracts and not self._weights(node):
                description = self._descriptions[node.name]
                extents = description.extents([self._tensors[name].shape for name in node.inputs], node.attrs)
                return self._shape(core)[1], prod(extents[name] for name in description.reduction_variables)
        return self._shape(core)[1], 1

    def _experts(self, sequence: int) -> tuple[int, int, float]:
        """Return the number of experts, how many a token chooses, and an expert's capacity in equal shares."""
        slots = next((node for node in self._nodes if self._traits(node).dispatches), None)
        if slots is None:
            return 0, 0, 0.0
        _, experts, places, _ = self._shape(slots)
        chosen = self._tensors[slots.inputs[1]].shape[-1]
        return experts, chosen, round(places * experts / (chosen * sequence), 3)

    def _positions(self, learned: tuple[int, int], head_width: int) -> tuple[str, float, bool]:
        """Return the kind of position encoding and, if rotary, its base and whether it has Llama 3.1's frequencies."""
        if any(self._traits(node).attended and len(node.inputs) > QUERIES for node in self._nodes):
            return "alibi", 0.0, False
        constants = [
            tensor for tensor in self._tensors.values() if tensor.role == "constant" and tensor.shape == (head_width,)
        ]
        if constants and any(map(self._is_cosine, self._nodes)):
            frequencies = [float(frequency) for frequency in array_of(constants[0])[: head_width // 2]]
            base = float(f"{frequencies[1] ** (-head_width / 2):.4g}")  # frequencies have 24 bits
            slowest = base ** (2 / head_width - 1)
            return "rope", base, frequencies[-1] < 2 * slowest / STRETCH
        positions = [tensor for tensor in self._tensors.values() if tensor.role == "weight" and tensor.shape == learned]
        return ("learned" if positions else "none"), 0.0, False

    def _is_cosine(self, node: Node) -> bool:
        outputs = describe(node, self._tensors).outputs
        return any(isinstance(part, Call) and part.function == "cos" for of in outputs for part in walk(of.value))
