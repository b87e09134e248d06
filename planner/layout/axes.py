"""Bytes by axis: what workers exchange, by the axes of the mesh along which the two of a pair differ."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.layout.exchange import Exchange
from planner.layout.split import REMEMBERED
from planner.layout.ways import Ways

UNNAMED = "workers"
"""The axis of steps that no plan names, as of one that a search found."""


def by_axis(moved: NDArray[np.int64], ways: Ways) -> dict[str, int]:
    """Return a k x k matrix of what workers send each other, added up by the axes along which the two differ.

    >>> by_axis(np.array([[0, 1, 2, 4]] + [[0, 0, 0, 0]] * 3), Ways((2, 2), axes=("dp", "tp")))
    {'dp': 2, 'tp': 1, 'dp x tp': 4}
    """
    digits, result = np.array(ways.digits_of_workers()), dict[str, int]()
    axes = ways.axes or ("",) * len(ways)
    kinds = sum((digits[:, None, step] != digits[:, step]) << step for step in range(len(axes)))
    totals = np.bincount(np.ravel(kinds), moved.ravel())  # exact below 2^53
    for kind in np.flatnonzero(totals).tolist():
        name = axes_name(axis for step, axis in enumerate(axes) if kind >> step & 1)
        result[name] = result.get(name, 0) + int(totals[kind])
    return result


@lru_cache(REMEMBERED)
def exchanged_by_axis(exchange: Exchange) -> dict[str, int]:
    """Return the elements that an exchange moves, by axes."""
    return by_axis(exchange.moved(), exchange.ways)


def axes_name(axes: Iterable[str]) -> str:
    """Return what several axes are called together, each once."""
    return " x ".join(dict.fromkeys(axis or UNNAMED for axis in axes))
