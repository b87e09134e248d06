"""Bytes that workers send, by axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from math import prod

from planner.layout import axes_name
from planner.layout.ways import AXES

Sent = Mapping[str, float]
"""Bytes by axis: by those along which the sender and the receiver differ, as in "dp" or "dp x cp"."""


def added(several: Iterable[Sent]) -> Sent:
    """Add up bytes by axis."""
    total: dict[str, float] = {}
    for sent in several:
        for axes, nbytes in sent.items():
            total[axes] = total.get(axes, 0) + nbytes
    return total


def times(count: float, sent: Sent) -> Sent:
    """Return bytes that are sent so many times."""
    return {axes: count * nbytes for axes, nbytes in sent.items()}


def sent_by_member(degrees: Mapping[str, int], nbytes: float) -> Sent:
    """Return what a member of a group sends that gathers, or scatters, so many bytes and spans a mesh of these degrees.

    Each sends each other one a part. Reducing all of it everywhere is both, and twice as much.

    >>> sent_by_member({"dp": 2, "cp": 2}, 80)
    {'dp': 20.0, 'cp': 20.0, 'dp x cp': 20.0}
    """
    each, along = nbytes / prod(degrees.values()), [axis for axis in AXES if degrees.get(axis, 1) > 1]
    groups = (axes for count in range(1, len(along) + 1) for axes in combinations(along, count))
    return {axes_name(axes): each * prod(degrees[axis] - 1 for axis in axes) for axes in groups}
