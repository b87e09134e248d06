"""Bytes that workers send, by mesh axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from math import prod

from planner.layout import axes_name
from planner.layout.ways import AXES

Sent = Mapping[str, float]
"""Bytes by the axes along which sender and receiver differ, such as "dp" or "dp x cp"."""


def added(several: Iterable[Sent]) -> Sent:
    """Return the sum of bytes by axis."""
    total: dict[str, float] = {}
    for sent in several:
        for axes, nbytes in sent.items():
            total[axes] = total.get(axes, 0) + nbytes
    return total


def times(count: float, sent: Sent) -> Sent:
    """Return the bytes multiplied by `count`."""
    return {axes: count * nbytes for axes, nbytes in sent.items()}


def sent_by_member(degrees: Mapping[str, int], nbytes: float) -> Sent:
    """Return the bytes that each member of a mesh sends in an all-gather or reduce-scatter of `nbytes`.

    Each member sends one part to each other. An all-reduce is both, with twice the bytes.

    >>> sent_by_member({"dp": 2, "cp": 2}, 80)
    {'dp': 20.0, 'cp': 20.0, 'dp x cp': 20.0}
    """
    each, along = nbytes / prod(degrees.values()), [axis for axis in AXES if degrees.get(axis, 1) > 1]
    groups = (axes for count in range(1, len(along) + 1) for axes in combinations(along, count))
    return {axes_name(axes): each * prod(degrees[axis] - 1 for axis in axes) for axes in groups}
