"""Layouts in the words of meshes: axes of a mesh of workers, each with a placement, as DTensor and its like have them.

Adjacent steps with the same placement are one axis; the first axis is the most significant digit of a worker. A
dimension that is sharded behind steps at which its digits are free is interleaved: it is first cut into as many chunks
as those steps have ways together, and each chunk is shared out (DTensor's `_StridedShard`, with its `split_factor`).
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
    """Dimension `dim` is cut into `split_factor` chunks, and a worker holds its part of each, one after the other."""

    dim: int
    split_factor: int

    def __str__(self) -> str:
        return f"S{self.dim}/{self.split_factor}"


AxisPlacement = Placement | StridedShard


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the mesh: how many workers lie along it, how they hold the tensor, and of which steps it is made.

    `steps` are adjacent, counted from 0.
    """

    ways: int
    placement: AxisPlacement
    steps: tuple[int, ...]


def mesh_axes(layout: Layout, ways: Ways, shape: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[Axis, ...]:
    """Return the fewest axes that spell a layout of a tensor of this shape for a view of it with coarser dimensions.

    Dimension i of the view runs over the dimensions groups[i] of the tensor. A shard of one of them is a part of every
    chunk that those before it make, as far as they are not split themselves. Adjacent steps with the same placement are
    one axis: DTensor puts a tensor together rightly only so, where an interleaved dimension is sharded at such steps.
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
    """Say why no mesh of others spells the layout, if only some workers hold it or its splits do not divide an extent.

    Where a split leaves a remainder, parts start at n*j//k here, and at multiples of ceil(n/k) elsewhere.
    """
    for step, placement in enumerate(layout):
        if isinstance(placement, At):
            return f"step {step + 1}: expected a placement on all workers, found {placement}"
    for dim in sorted({placement.dim for placement in layout if isinstance(placement, Shard)}):
        steps = [step for step, placement in enumerate(layout) if placement == Shard(dim)]
        if shares := ways.shares:
            return f"dimension {dim}: expected workers of equal shares, found {', '.join(map(str, shares))}"
        parts = math.prod(ways.factors[: steps[-1] + 1])  # of steps from the first on: those before cut chunks
        if shape[dim] % parts:
            return f"dimension {dim}: expected an extent that {parts} parts divide, found {shape[dim]}"
    return None


def interleaved_twice(axes: Sequence[Axis]) -> str | None:
    """Say which dimension is interleaved along several axes, which DTensor holds, but puts together wrongly; else None.

    Such are views of a tensor whose finer dimensions are sharded at several steps, and dimensions that are sharded at
    three steps with others between.
    """
    counts = Counter(axis.placement.dim for axis in axes if isinstance(axis.placement, StridedShard))
    for dim, count in counts.items():
        if count > 1:
            return f"dimension {dim}: expected to be interleaved along one axis, found {count}"
    return None
