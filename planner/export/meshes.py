"""A plan's layouts as placements of one mesh, in which the parts of a dimension are contiguous.

A worker holds as much as in the plan, if need be other indices. All tensors share the mesh, whose axes are the plan's
steps; adjacent steps that no tensor tells apart are one axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.layout import REPLICATE, Layout, Shard
from planner.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Mesh:
    """The extents of a mesh, and the steps of the plan that each axis is made of."""

    ways: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """What the axes are called."""
        return tuple(f"step{'_'.join(str(step + 1) for step in steps)}" for steps in self.steps)

    @property
    def workers(self) -> int:
        """How many there are."""
        return math.prod(self.ways)

    def placements(self, layout: Layout) -> Layout:
        """Return a layout's placement at every axis."""
        return tuple(layout[steps[0]] for steps in self.steps)


def mesh_of(plan: Plan, tensors: Iterable[str]) -> Mesh:
    """Return the mesh on which these tensors of a plan lie."""
    layouts = {plan.layouts[name] for name in tensors}
    steps: list[tuple[int, ...]] = [(0,)] if plan.ways else []
    for before, step in pairwise(range(len(plan.ways))):
        if all(layout[before] == layout[step] for layout in layouts):
            steps[-1] = (*steps[-1], step)
        else:
            steps.append((step,))
    return Mesh(tuple(math.prod(plan.ways[step] for step in own) for own in steps), tuple(steps))


def uneven_split(shape: Sequence[int], placements: Layout, mesh: Mesh) -> str:
    """Say what extent was expected where the parts that one is split into do not divide it; nothing where they do."""
    for dim, extent in enumerate(shape):
        parts = math.prod(way for way, placement in zip(mesh.ways, placements, strict=True) if placement == Shard(dim))
        if extent % parts:
            return f"expected a dimension {dim} that {parts} parts divide, found {extent}"
    return ""


def joined(placements: Layout, groups: Sequence[Sequence[int]], shape: Sequence[int]) -> tuple[Layout, bool]:
    """Return the placements of a tensor whose dimensions are joined, and whether all parts stay contiguous.

    A dimension that is not the first of its group (extents of 1 aside) is split as the joined one is.
    """
    target = {axis: place for place, group in enumerate(groups) for axis in group}
    first = {next((axis for axis in group if shape[axis] > 1), None) for group in groups}
    same = all(placement.dim in first for placement in placements if isinstance(placement, Shard))
    return tuple(
        Shard(target[placement.dim]) if isinstance(placement, Shard) else placement for placement in placements
    ), same


def split_once(placements: Layout, dim: int) -> Layout:
    """Return placements that split a dimension at its first split only; at others it is replicated."""
    split = Shard(dim)
    return tuple(
        REPLICATE if placement == split and split in placements[:axis] else placement
        for axis, placement in enumerate(placements)
    )


def only(placements: Layout, dims: frozenset[int]) -> Layout:
    """Return placements that split no other dimensions; what splits others is replicated."""
    return tuple(
        REPLICATE if isinstance(placement, Shard) and placement.dim not in dims else placement
        for placement in placements
    )
