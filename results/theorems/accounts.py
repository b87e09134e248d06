"""Four ways to count what a plan of matrix products moves, in elements.

`counted` is the truth: sets of elements, intersected. `lemma_2` charges a step as Tofu's Lemma 2 does; `extra_inputs`
also charges for what earlier steps made a group fetch (Tofu Sec 5.2, Figure 6); `contiguous` is the truth if every
step cut the contiguous tile that the steps before it left, instead of the digits of an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import TypeVar

import numpy as np

from planner.layout import REPLICATE, Shard, Ways, signatures
from planner.layout.region import part
from planner.plans.plan import Plan

ITEM = 4


def counted(plan: Plan) -> int:
    """Return the elements that move."""
    return plan.total_bytes // ITEM


def counted_by_step(plan: Plan) -> tuple[int, ...]:
    """Return what each step adds to the steps before it."""
    return tuple(cost // ITEM for cost in plan.step_bytes())


def counted_by_level(plan: Plan) -> tuple[int, ...]:
    """Return, per step, the elements that move between workers whose digits first differ at that step."""
    own = np.array([plan.ways.digits(worker) for worker in range(plan.workers)])
    level = (own[:, None] != own[None, :]).argmax(axis=2)
    off = ~np.eye(plan.workers, dtype=bool)
    return tuple(int(plan.bytes[off & (level == step)].sum()) // ITEM for step in range(len(plan.ways)))


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a transfer among `ways` groups.

    `whole`: each group needs the whole operand, or makes partial sums of the whole output; else its share, which is
    `aligned` where the layout shards the very dimension that the strategy splits. `replicated`: each group stores all.
    """

    ways: int
    whole: bool
    replicated: bool
    aligned: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """One operand or output, its size in elements, and its steps; `kept` are the shares that a step leaves a group."""

    size: int
    is_output: bool
    steps: tuple[Step, ...]
    kept: tuple[Fraction, ...]


def transfers(plan: Plan) -> Iterator[Transfer]:
    """Yield every operand and output of a plan whose index expressions are all plain variables."""
    for node in plan.graph.nodes:
        described = signatures(plan.graph)[node.name].description
        inputs = [(node.inputs[access.operand], access.index) for access in described.accesses]
        outputs = [(node.outputs[0], described.outputs[0].index)]
        for is_output, accesses in enumerate((inputs, outputs)):
            for tensor, index in accesses:
                names = [expression.variables[0] for expression in index]
                steps = tuple(
                    Step(way, choice not in names, place == REPLICATE, _aligned(place, names, choice))
                    for way, choice, place in zip(
                        plan.ways, plan.strategies[node.name], plan.layouts[tensor], strict=True
                    )
                )
                yield Transfer(plan.graph.tensors[tensor].elements, bool(is_output), steps, _kept(plan, tensor))


def _aligned(place: object, names: Sequence[str], choice: str) -> bool:
    return isinstance(place, Shard) and names[place.dim] == choice


def _kept(plan: Plan, tensor: str) -> tuple[Fraction, ...]:
    layout = plan.layouts[tensor]
    return tuple(
        Fraction(1, way if isinstance(place, Shard) else 1) for way, place in zip(plan.ways, layout, strict=True)
    )


def lemma_2(plan: Plan) -> tuple[int, ...]:
    """Charge every step as if a group held, and needed, nothing but its stored share (Tofu Lemma 2, SoyBean Alg. 1)."""
    every = list(transfers(plan))
    costs = [
        prod(plan.ways.factors[:step]) * sum(_alone(transfer, step) for transfer in every)
        for step in range(len(plan.ways))
    ]
    return tuple(map(_whole, costs))


def _alone(transfer: Transfer, number: int) -> Fraction:
    """Return one group's cost of one step, its share taken for the tensor."""
    step = transfer.steps[number]
    if step.replicated:
        moved = Fraction((step.ways - 1) * (1 + step.whole) if transfer.is_output else 0)
    else:
        moved = step.ways * (_wanted(step) - _common(step))
    return moved * transfer.size * prod(transfer.kept[:number])


def _wanted(step: Step) -> Fraction:
    return Fraction(1, 1 if step.whole else step.ways)


def _common(step: Step) -> Fraction:
    """Return the share of a tensor that a part both wants and stores, where nothing is replicated."""
    return Fraction(1, step.ways if step.whole or step.aligned else step.ways**2)


def extra_inputs(plan: Plan) -> tuple[int, ...]:
    """Charge every step for a group's own share and for what earlier steps made it fetch; nothing is replicated.

    The own share costs what Lemma 2 says. Extra inputs lie where the step's parts want them: each part has 1/k_i of
    them and fetches the rest of what it needs. An output is an operand read backwards: what is summed is needed whole.
    """
    totals = [Fraction(0)] * len(plan.ways)
    for transfer in transfers(plan):
        need = own = Fraction(1)
        workers = 1
        for number, step in enumerate(transfer.steps):
            wanted, common = _wanted(step), _common(step)
            workers *= step.ways
            moved_now = own * (wanted - common) + (need - own) * (wanted - Fraction(1, step.ways))
            totals[number] += workers * transfer.size * moved_now
            need, own = need * wanted, own * common
    return tuple(map(_whole, totals))


def _whole(volume: Fraction | int) -> int:
    if volume.denominator != 1:
        raise ValueError(f"the extents do not divide: {volume} elements")
    return int(volume)


Choice = TypeVar("Choice")
Box = tuple[tuple[int, int], ...]


def contiguous(plan: Plan) -> int:
    """Count a plan of matrix products, nothing replicated, with contiguous tiles: each step cuts the tile it finds."""
    total = 0
    for node in plan.graph.nodes:
        signature = signatures(plan.graph)[node.name]
        described, extents = signature.description, signature.extents
        names = list(extents)
        at = [names.index(v) for v in plan.strategies[node.name]]
        boxes = [tile(tuple(extents.values()), at, plan.ways, worker) for worker in range(plan.workers)]
        reads = [(node.inputs[access.operand], access.index) for access in described.accesses]
        for tensor, index in (*reads, (node.outputs[0], described.outputs[0].index)):
            place = [names.index(expression.variables[0]) for expression in index]
            reached = [tuple(box[position] for position in place) for box in boxes]
            own = tiles(plan, tensor)
            if tensor in node.outputs:
                pairs = product(enumerate(reached), enumerate(own))
                total += sum(common(computed, stored) for (u, computed), (w, stored) in pairs if u != w)
            else:
                total += sum(common(need, need) - common(need, held) for need, held in zip(reached, own, strict=True))
    return total


def tiles(plan: Plan, tensor: str) -> list[Box]:
    """Return every worker's contiguous tile of a tensor."""
    dims = [place.dim if isinstance(place, Shard) else None for place in plan.layouts[tensor]]
    return [tile(plan.graph.tensors[tensor].shape, dims, plan.ways, worker) for worker in range(plan.workers)]


def tile(shape: Sequence[int], dims: Sequence[int | None], ways: Ways, worker: int) -> Box:
    """Cut a box step by step along the given dimensions (None: not at all)."""
    box = [(0, extent) for extent in shape]
    for way, digit, dim in zip(ways, ways.digits(worker), dims, strict=True):
        if dim is not None:
            start, stop = box[dim]
            low, high = part(stop - start, range(way + 1), digit)
            box[dim] = (start + low, start + high)
    return tuple(box)


def common(box: Box, other: Box) -> int:
    """Return how many elements two boxes share."""
    return prod(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(box, other, strict=True))


def reordered(plan: Plan, order: Sequence[int]) -> Plan:
    """Return the plan with its steps in another order."""

    def permuted(of: Mapping[str, tuple[Choice, ...]]) -> dict[str, tuple[Choice, ...]]:
        return {name: tuple(choices[step] for step in order) for name, choices in of.items()}

    ways = Ways(tuple(plan.ways[step] for step in order))
    return Plan(plan.graph, plan.seed, ways, permuted(plan.layouts), permuted(plan.strategies))
