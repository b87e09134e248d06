"""Why bytes move: gradients that are reduced, weights that are gathered, activations that others compute with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from planner.explanations.words import Words
from planner.graph.ir import ITEM_BYTES, Node
from planner.plans.plan import Plan
from planner.plans.traffic import Traffic

GRADIENTS, WEIGHTS, STATE = "gradients' reduction", "weights gathered", "optimizer state"
ACTIVATIONS, BACKWARD, LOSS, INPUTS = "activations", "gradients of activations", "loss", "inputs"

KINDS = {"weight": WEIGHTS, "state": STATE, "loss": LOSS, "input": INPUTS, "buffer": INPUTS, "constant": INPUTS}
"""What moves for what, by the role of the tensor; activations and gradients need a look."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that move for a node, of all micro-batches: what for, and for which part of the network."""

    node: str
    kind: str
    layers: str
    nbytes: int


def moved_bytes(plan: Plan, words: Words) -> Iterator[Moved]:
    """Yield everything that moves; the bytes sum to the plan's."""
    tensors = plan.graph.tensors
    copies = {name for node in plan.graph.nodes if is_copy_of_weights(node, words) for name in node.outputs}
    for nodes, *others in plan.traffic().alike_nodes:
        for place, work in enumerate(Traffic(plan, nodes, like=plan.traffic()).work):
            for name, exchange, times in work.exchanges():
                nbytes = times * int(exchange.moved().sum()) * ITEM_BYTES[tensors[name].dtype]
                for alike in (nodes, *others) if nbytes else ():
                    node = alike[place]
                    moved = _corresponding(name, work.node, node)
                    kind = WEIGHTS if moved in copies else _kind(moved, words)
                    yield Moved(node.name, kind, words.alike.layer_of(moved), nbytes)


def _corresponding(tensor: str, node: Node, other: Node) -> str:
    """Return what another node has where a node has a tensor."""
    places = zip((*node.inputs, *node.outputs), (*other.inputs, *other.outputs), strict=True)
    return next(there for here, there in places if here == tensor)


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


def bytes_by_cause(moved: Iterator[Moved] | tuple[Moved, ...]) -> Counter[tuple[str, str]]:
    """Return bytes by kind and part of the network."""
    total: Counter[tuple[str, str]] = Counter()
    for movement in moved:
        total[movement.kind, movement.layers] += movement.nbytes
    return total
