"""Regions of a tensor with fine dimensions, as regions of the same elements under coarser ones."""

from __future__ import annotations

from collections.abc import Sequence

from planner.graph.entries import groups
from planner.layout.region import Region
from planner.layout.split import Runs, normalize


def coarser(region: Region, fine: Sequence[int], coarse: Sequence[int]) -> Region:
    """Return a region of a tensor of shape `fine` as one of shape `coarse`; ValueError where it is not coarser.

    The local arrays of both hold the same elements in the same order, and differ in their shapes.
    """
    joins = groups(coarse, fine)
    if joins is None:
        raise ValueError(f"expected a shape that groups dimensions of {tuple(fine)}, found {tuple(coarse)}")
    return tuple(_joined([region[axis] for axis in group], [fine[axis] for axis in group]) for group in joins)


def _joined(runs: Sequence[Runs], lengths: Sequence[int]) -> Runs:
    """Return the runs of several dimensions as runs of the one that they make up, the last varying fastest."""
    if len(runs) <= 1:
        return runs[0] if runs else ((0, 1),)
    *outer, inner = runs
    if inner == ((0, lengths[-1]),):
        return tuple((start * lengths[-1], stop * lengths[-1]) for start, stop in _joined(outer, lengths[:-1]))
    places = (index * lengths[-1] for start, stop in _joined(outer, lengths[:-1]) for index in range(start, stop))
    return normalize([(place + start, place + stop) for place in places for start, stop in inner])
