"""What data, model and hybrid parallelism move: as SoyBean's Section 2.2 adds it up, and counted."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from planner.layout import REPLICATE, Placement, Shard, Ways
from planner.plans.plan import Plan
from results.theorems import accounts, draws

ITEM = 4

Tiling = dict[str, tuple[Placement, str]]

DATA: Tiling = {
    "w": (REPLICATE, ""),
    "x": (Shard(0), "i"),
    "g": (Shard(0), "i"),
    "dw": (REPLICATE, "k"),
}
MODEL: Tiling = {
    "w": (Shard(0), ""),
    "x": (Shard(1), "k"),
    "g": (REPLICATE, "j"),
    "dw": (Shard(0), "i"),
}
"""T_data and T_model of Section 4.1: where a kind of tensor is, and by which variable its product is computed.

Gradients of weights are kept as the weights are. To the letter T_model would replicate them, as it does "otherwise".
"""


@dataclass(frozen=True, slots=True)
class Example:
    """Fully connected layers of equal width, for `workers` workers in `groups` groups."""

    batch: int
    width: int
    layers: int
    workers: int
    groups: int

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return self.width * self.width * self.layers * ITEM

    @property
    def activations(self) -> int:
        """Bytes of all layers' outputs, once."""
        return self.batch * self.width * self.layers * ITEM

    @property
    def within(self) -> int:
        """Workers of a group."""
        return self.workers // self.groups


def as_in_the_text(example: Example, *, own_part: bool = True) -> dict[str, float]:
    """Add up as Section 2.2 does: all that everybody contributes, and all that everybody gets back.

    Without `own_part`, what a worker keeps to itself is not counted: k - 1 instead of k.
    """
    own = 0 if own_part else 1
    across = example.weights * (example.groups - own) * 2
    inside = example.activations / example.groups * (example.within - own) * 2
    return {
        "data": example.weights * (example.workers - own) * 2,
        "model": example.activations * (example.workers - own) * 2,
        "hybrid": across + example.groups * inside,
    }


def plan_of(scheme: str, example: Example, ways: tuple[int, ...]) -> Plan:
    """Return the plan of all products of a training iteration that is tiled as Section 4.1 says, the same at all steps.

    `hybrid` is data parallel at the first half of the steps and model parallel at the others.
    """
    half = len(ways) // 2
    steps = {"data": [DATA] * len(ways), "model": [MODEL] * len(ways), "hybrid": [DATA] * half + [MODEL] * half}[scheme]
    graph = draws.chain(example.batch, [example.width] * (example.layers + 1))
    kind = {name: name.rstrip("0123456789") for name in graph.tensors}
    layouts = {name: tuple(step[kind[name]][0] for step in steps) for name in graph.tensors}
    strategies = {node.name: tuple(step[kind[node.name]][1] for step in steps) for node in graph.nodes}
    return Plan(graph, 0, Ways(ways), layouts, strategies)


def moved(scheme: str, example: Example) -> int:
    """Return the bytes that the scheme moves, counted element by element."""
    ways = (example.groups, example.within) if scheme == "hybrid" else (example.workers,)
    return plan_of(scheme, example, ways).total_bytes


def weighted_sum(scheme: str, example: Example) -> int:
    """Return what Section 4.3's weighted sum (Theorem 1) makes of the same tilings, in cuts by two."""
    ways = (2,) * (example.workers.bit_length() - 1)
    if prod(ways) != example.workers:
        raise ValueError(f"expected a power of two workers, found {example.workers}")
    return ITEM * sum(accounts.lemma_2(plan_of(scheme, example, ways)))
