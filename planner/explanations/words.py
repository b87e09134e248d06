"""Words for what a plan splits: samples, positions, heads, the vocabulary, rows, columns, channels.

Dimensions of tensors and index variables of nodes that index each other form one axis. The meaning of an axis follows
from the graph, not from names: inputs have samples, tokens have positions; heads are what a product of activations
iterates over without contracting it; the vocabulary is what integers index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

import tdl
from planner.explanations.accounts import Movement
from planner.graph.ir import FLOATING, Graph, Node
from planner.graph.repeats import SegmentPlace, repeats_of
from planner.grouping import grouped
from planner.layout import EVERYWHERE, PARTIAL, REPLICATE, TERMS, Placement, Shard, Signature, Strategy, Ways, group_of
from planner.search.alternatives.labels import Labelling, Member, is_weight_or_state
from planner.search.coarse import CoarseGraph


class Alike:
    """Groups of tensors and nodes that correspond to each other in the segments of a run.

    Names are for display only.
    """

    def __init__(self, graph: Graph) -> None:
        self._repeats = repeats_of(graph)
        self._places: Mapping[str, SegmentPlace] = {**self._repeats.tensors, **self._repeats.nodes}
        self._layers = {number: self._named(segments) for number, segments in enumerate(self._repeats.runs)}

    def group_of(self, name: str) -> Hashable:
        """Return a key that a tensor or node shares with those that correspond to it, and with no other."""
        place = self._places.get(name)
        return name if place is None else (self._repeats.run_of(place.segment), place.position)

    def layer_of(self, name: str) -> str:
        """Return the name of the part of the network that a tensor or node belongs to, such as `h.*` or `embedding`."""
        place = self._places.get(name)
        return name.partition(".")[0] if place is None else self._layers[self._repeats.run_of(place.segment)]

    def _named(self, segments: range) -> str:
        """Return the common prefixes of each segment's names, as one pattern."""
        nodes = self._repeats.nodes.items()
        names = grouped((place.segment, name) for name, place in nodes if place.segment in segments)
        begins = [_beginning(those).rpartition(".")[0] for those in names.values()]
        pattern = pattern_of(begins)
        return pattern if pattern.strip("*.") else "layers"


def pattern_of(names: Sequence[str]) -> str:
    """Return names as one glob: `h.*.mlp.weight`, `l*.mlp.up.w`.

    >>> pattern_of(["h.0.mlp.w", "h.1.mlp.w"]), pattern_of(["l8.up", "l9.up", "l10.up"]), pattern_of(["wte"])
    ('h.*.mlp.w', 'l*.up', 'wte')
    """
    parts = [name.split(".") for name in names]
    if len({*map(len, parts)}) > 1:
        return _joined(names)
    return ".".join(_joined(those) for those in zip(*parts, strict=True))


def _joined(texts: Iterable[str]) -> str:
    """Return texts as one, with a star between their common prefix and suffix."""
    different = sorted({*texts})
    if len(different) == 1:
        return different[0]
    start = _beginning(different)
    rests = [text[len(start) :][::-1] for text in different]
    return f"{start}*{_beginning(rests)[::-1]}"


def _beginning(texts: Iterable[str]) -> str:
    """Return the common prefix of all texts."""
    return "".join(letters[0] for letters in takewhile(lambda letters: len({*letters}) == 1, zip(*texts, strict=False)))


SAMPLES, POSITIONS, HEADS, VOCABULARY = "samples", "positions", "heads", "vocabulary"
REPLICATED, TERMS_OF_SUM, WHOLE = "replicated", "terms of a sum", "whole"
ALIKE, ON_ONE, STAGE = "the same on all", "on one worker", "stage "
CONVOLUTION = "convolution"


class Words:
    """Names of the dimensions of a graph's tensors and of the choices of its nodes."""

    def __init__(self, graph: Graph, signatures: Mapping[str, Signature]) -> None:
        self.graph, self.signatures, self.alike = graph, signatures, Alike(graph)
        self._labelling = Labelling(CoarseGraph(graph, signatures, {}, (), (), {}))
        forward = [node for node in graph.nodes if node.forward is None]
        self._readers = grouped((name, node) for node in forward for name in node.inputs)
        heads = [*self._heads_of_products()]
        vocabulary = [("node", node.name, variable) for node in forward for variable in self._looked_up(node)]
        self._numbers = self._labelling.axis_numbers() if heads or vocabulary else {}
        self._heads, self._vocabulary = self._axes_of(heads), self._axes_of(vocabulary)

    def of_dimension(self, name: str, dim: int) -> str:
        """Return the name of a tensor's dimension."""
        tensor = self.graph.tensors[name]
        if (word := self._of_axis(("tensor", name, dim))) == HEADS:
            return word
        if is_weight_or_state(self.graph, name):
            return self._of_weight(name, dim)
        if dim in self._labelling.batch.tensors.get(name, ()):
            return SAMPLES
        if dim in self._labelling.sequence.tensors.get(name, ()):
            return POSITIONS
        return word or ("features" if dim == len(tensor.shape) - 1 else f"dimension {dim}")

    def of_choice(self, node: Node, choice: str) -> str:
        """Return what a node's strategy splits at a step."""
        if choice in (fixed := {EVERYWHERE: ALIKE, TERMS: TERMS_OF_SUM, tdl.ON_ONE: ON_ONE}):
            return fixed[choice]
        if (stage := group_of(choice)) is not None:
            return f"{STAGE}{stage}"
        for word, labels in ((SAMPLES, self._labelling.batch), (POSITIONS, self._labelling.sequence)):
            if choice in labels.nodes.get(node.name, ()):
                return word
        return self._of_variable(node, choice)

    def of_strategy(self, node: Node, strategy: Strategy, ways: Ways) -> str:
        """Return what a node's strategy splits, with the ways of every step."""
        return over_ways([self.of_choice(node, choice) for choice in strategy], ways.factors)

    def _of_variable(self, node: Node, choice: str) -> str:
        """Return the name of a node's variable that is neither samples nor positions."""
        signature = self.signatures[node.name]
        parts = "channels" if signature.category == CONVOLUTION else "columns"
        word = self._of_axis(("node", node.name, choice))
        if choice in signature.description.reduction_variables:
            return f"{word or f'input {parts}'} (summed)"
        if word:
            return word
        if self.contracts(node):
            return f"output {parts}"
        places = reversed(self._labelling.places[node.name])
        written = ((name, dim) for name, variables in places for dim, of in enumerate(variables) if of == choice)
        return next((self.of_dimension(name, dim) for name, dim in written), choice)

    def contracts(self, node: Node) -> bool:
        """Return True if a node sums products of two operands or looks up rows (products, convolutions, attention)."""
        description = self.signatures[node.name].description
        accesses = description.accesses
        for variable in description.reduction_variables:
            operands = {a.operand for a in accesses for index in a.index if variable in index.variables}
            if len(operands) > 1 or variable in self._looked_up(node):
                return True
        return False

    def variable_of(self, node: Node, tensor: str, dim: int) -> str | None:
        """Return the variable of a node that indexes a dimension of a tensor that it reads or writes."""
        return next((at[dim] for name, at in self._labelling.places[node.name] if name == tensor), None)

    def readers(self, name: str) -> Sequence[Node]:
        """Return the forward nodes that read a tensor or a weight's copy, and the nodes that update it."""
        nodes = self._readers.get(name, ())
        read_alone = (node.outputs[0] for node in nodes if node.inputs == (name,))
        copies = (output for output in read_alone if self.graph.tensors[output].role == "weight")
        return [*nodes, *(reader for copy in copies for reader in self.readers(copy))]

    def has_samples(self, name: str) -> bool:
        """Return True if a tensor has a part for every sample."""
        return bool(self._labelling.batch.tensors.get(name))

    def looks_up(self, node: Node, variable: str) -> bool:
        """Return True if integers select rows along a variable of a node."""
        return variable in self._looked_up(node)

    def _of_weight(self, name: str, dim: int) -> str:
        shape = self.graph.tensors[name].shape
        if len(shape) <= 2:
            return ("elements",)[dim] if len(shape) == 1 else ("rows", "columns")[dim]
        for node in self.readers(name):
            signature, variable = self.signatures[node.name], self.variable_of(node, name, dim)
            if variable is not None and self.contracts(node):
                side = "input" if variable in signature.description.reduction_variables else "output"
                return f"{side} {'channels' if signature.category == CONVOLUTION else 'columns'}"
        return f"dimension {dim}"

    def _of_axis(self, member: Member) -> str:
        number = self._numbers.get(member)
        return HEADS if number in self._heads else VOCABULARY if number in self._vocabulary else ""

    def _axes_of(self, members: Iterable[Member]) -> frozenset[int]:
        return frozenset(self._numbers[member] for member in members if member in self._numbers)

    def _heads_of_products(self) -> Iterator[Member]:
        """Yield the variables that index all operands and the result of a product of activations, without samples."""
        for node in self.graph.nodes:
            if node.forward is not None or any(is_weight_or_state(self.graph, name) for name in node.inputs):
                continue
            places = self._labelling.places[node.name]
            if len(node.inputs) < 2 or not self.contracts(node):
                continue
            common = set[str | None].intersection(*(set(variables) for _, variables in places))
            samples = self._labelling.batch.nodes.get(node.name, frozenset())
            yield from (("node", node.name, variable) for variable in common if variable and variable not in samples)

    def _looked_up(self, node: Node) -> frozenset[str]:
        """Return the variables along which integers select rows of a weight."""
        tensors = self.graph.tensors
        if all(tensors[name].dtype in FLOATING for name in node.inputs):
            return frozenset()
        description = self.signatures[node.name].description
        tables = {n for n, name in enumerate(node.inputs) if is_weight_or_state(self.graph, name)}
        indices = (index for access in description.accesses if access.operand in tables for index in access.index)
        indexing = {variable for index in indices for variable in index.variables}
        return frozenset(indexing.intersection(description.reduction_variables))


def placement_word(words: Words, name: str, placement: Placement) -> str:
    """Return what a placement splits of a tensor, such as `rows`, or that it is replicated."""
    if isinstance(placement, Shard):
        return words.of_dimension(name, placement.dim)
    if placement in (REPLICATE, PARTIAL):
        return REPLICATED if placement == REPLICATE else TERMS_OF_SUM
    return f"{STAGE}{str(placement)[1:]}"


def over_ways(words: Sequence[str], ways: Sequence[int]) -> str:
    """Return a word per step with its ways, as in `columns over 4, replicated over 2`."""
    together: dict[str, int] = {}
    for word, way in zip(words, ways, strict=True):
        together[word] = together.get(word, 1) * way
    if len(together) == 1 and (word := next(iter(together))) in (REPLICATED, ALIKE, ON_ONE):
        return word
    named = (word if word.startswith(STAGE) else f"{word} over {way}" for word, way in together.items())
    return ", ".join(named) or WHOLE


GRADIENTS, WEIGHTS, STATE = "gradients' reduction", "weights gathered", "optimizer state"
ACTIVATIONS, BACKWARD, LOSS, INPUTS = "activations", "gradients of activations", "loss", "inputs"

KINDS = {"weight": WEIGHTS, "state": STATE, "loss": LOSS, "input": INPUTS, "buffer": INPUTS, "constant": INPUTS}
"""Purpose of a transfer by the tensor's role; activations and gradients are decided individually."""


def bytes_by_cause(movements: Iterable[Movement], words: Words) -> Counter[tuple[str, str]]:
    """Return the bytes moved by purpose and by part of the network; they sum to the plan's."""
    copies = {name for node in words.graph.nodes if is_copy_of_weights(node, words) for name in node.outputs}
    total: Counter[tuple[str, str]] = Counter()
    for movement in movements:
        if movement.nbytes:
            kind = WEIGHTS if movement.tensor in copies else _kind(movement.tensor, words)
            total[kind, words.alike.layer_of(movement.tensor)] += movement.nbytes
    return total


def _kind(name: str, words: Words) -> str:
    role = words.graph.tensors[name].role
    if role == "gradient":
        return BACKWARD if words.has_samples(name) else GRADIENTS
    return KINDS.get(role, ACTIVATIONS)


def is_copy_of_weights(node: Node, words: Words) -> bool:
    """Return True if a node copies weights for a pass, unchanged or in another precision, before others read them."""
    tensors = words.graph.tensors
    makes = tensors[node.outputs[0]].role == "activation" and bool(node.inputs)
    return makes and not words.contracts(node) and all(tensors[name].role == "weight" for name in node.inputs)
