"""Entries of a module's state dict, and the graph tensors that hold their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import Entry, Graph


def entries_of(graph: Graph) -> Mapping[str, Entry]:
    """Return a graph's entries; for a graph that was not imported, its weights under their own names."""
    weights = (tensor for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init is not None)
    return graph.entries or {tensor.name: Entry(tensor.name, tensor.shape, tensor.dtype) for tensor in weights}


def content_digest(content: NDArray[np.generic]) -> str:
    """Return a digest of an array's contents."""
    return sha256(np.ascontiguousarray(content).tobytes()).hexdigest()


def groups(coarse: Sequence[int], fine: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Return, for each dimension of `coarse`, the dimensions of `fine` that it spans; None if the shapes do not match.

    The elements of both shapes lie in the same order. Every dimension of `fine` is in one group; a dimension of extent
    1 may be in any group.
    """
    axes_by_dimension: list[list[int]] = []
    at = 0
    for extent in coarse:
        axes: list[int] = []
        while at < len(fine) and (prod(fine[axis] for axis in axes) < extent or (not axes and fine[at] == 1)):
            axes.append(at)
            at += 1
        axes_by_dimension.append(axes)
    if axes_by_dimension:
        axes_by_dimension[-1] += range(at, len(fine))
    elif fine:
        return None
    fits = all(
        prod(fine[axis] for axis in axes) == extent for axes, extent in zip(axes_by_dimension, coarse, strict=True)
    )
    return tuple(map(tuple, axes_by_dimension)) if fits else None
