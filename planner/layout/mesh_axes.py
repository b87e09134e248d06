"""Layouts in terms of meshes, as in DTensor: axes of a mesh of workers, each with a placement.

Adjacent steps with the same placement are one axis; the first axis is the most significant digit of a worker. A
dimension sharded after steps at which its digits are free is interleaved: it is first cut into as many chunks as those
steps have ways together, and each chunk is divided among the workers (DTensor's `_StridedShard`, with its
`split_factor`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.layout.ways import At, Layout, Placement, Shard, Ways


@dataclass(frozen=True, slots=True)
class StridedShard:
    """Dimension `dim` is cut into `split_factor` chunks; a worker holds its part of each, one after the other."""

    dim: int
    split_factor: int

    def __str__(self) -> str:
        return f"S{self.dim}/{self.split_factor}"


AxisPlacement = Placement | StridedShard


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the mesh: its number of workers, how they hold the tensor, and its steps.

    `steps` are adjacent, counted from 0.
    """

    ways: int
    placement: AxisPlacement
    steps: tuple[int, ...]


def mesh_axes(layout: Layout, ways: Ways, shape: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[Axis, ...]:
    """Return the fewest axes that express a tensor's layout for a view of it with coarser dimensions.

    Dimension i of the view spans the dimensions groups[i] of the tensor. A shard of one of them is a part of every
    chunk that the dimensions before it make, unless they are split themselves. Adjacent steps with the same placement
    must be one axis, because DTensor reassembles an interleaved dimension correctly only then.
    """
    local, placements = list(shape), list[AxisPlacement]()
    for step, placement in enumerate(layout):
        if isinstance(placement, Shard):
            dim, group = next((dim, group) for dim, group in enumerate(groups) if placement.dim in group)
            outer = math.prod(local[axis] for axis in group if axis < placement.dim)
            free = math.prod(way for way, earlier in zip(ways, layout[:step], strict=False) if earlier != placement)
            local[placement.dim] //= ways[step]
            placements.append(Shard(dim) if outer * free == 1 else StridedShard(dim, outer * free))
        else:
            placements.append(placement)
    runs = [tuple(run) for _, run in groupby(range(len(layout)), key=placements.__getitem__)]
    return tuple(Axis(math.prod(ways[step] for step in steps), placements[steps[0]], steps) for steps in runs)


def uneven(shape: Sequence[int], layout: Layout, ways: Ways) -> str | None:
    """Return why no mesh of another framework can express the layout; None if one can.

    That is so if only some workers hold the tensor, if shares differ, or if splits do not divide an extent: with a
    remainder, parts start at n*j//k here and at multiples of ceil(n/k) elsewhere.
    """
    for step, placement in enumerate(layout):
        if isinstance(placement, At):
            return f"step {step + 1}: expected a placement on all workers, found {placement}"
    for dim in sorted({placement.dim for placement in layout if isinstance(placement, Shard)}):
        steps = [step for step, placement in enumerate(layout) if placement == Shard(dim)]
        if shares := ways.shares:
            return f"dimension {dim}: expected workers with equal shares, found {', '.join(map(str, shares))}"
        parts = math.prod(ways.factors[: steps[-1] + 1])  # the steps from the first on: those before cut chunks
        if shape[dim] % parts:
            return f"dimension {dim}: expected an extent that {parts} parts divide, found {shape[dim]}"
    return None


def interleaved_twice(axes: Sequence[Axis]) -> str | None:
    """Return which dimension is interleaved along several axes, which DTensor reassembles wrongly; else None.

    This happens to views of a tensor whose finer dimensions are sharded at several steps, and to dimensions sharded at
    three steps with others between.
    """
    counts = Counter(axis.placement.dim for axis in axes if isinstance(axis.placement, StridedShard))
    for dim, count in counts.items():
        if count > 1:
            return f"dimension {dim}: expected to be interleaved along one axis, found {count}"
    return None
