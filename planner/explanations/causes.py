"""Why bytes move: gradients that are reduced, weights that are gathered, activations that others compute with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from planner.explanations.accounts import Movement
from planner.explanations.words import Words
from planner.graph.ir import Node

GRADIENTS, WEIGHTS, STATE = "gradients' reduction", "weights gathered", "optimizer state"
ACTIVATIONS, BACKWARD, LOSS, INPUTS = "activations", "gradients of activations", "loss", "inputs"

KINDS = {"weight": WEIGHTS, "state": STATE, "loss": LOSS, "input": INPUTS, "buffer": INPUTS, "constant": INPUTS}
"""What moves for what, by the role of the tensor; activations and gradients need a look."""


def bytes_by_cause(movements: Iterable[Movement], words: Words) -> Counter[tuple[str, str]]:
    """Return what moves by what it is for, and for which part of the network; the bytes sum to the plan's."""
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
    """Whether a node copies weights for a pass, as they are or in another precision, before others read them."""
    tensors = words.graph.tensors
    makes = tensors[node.outputs[0]].role == "activation" and bool(node.inputs)
    return makes and not words.contracts(node) and all(tensors[name].role == "weight" for name in node.inputs)
