"""Entries of a module's state dict, and the tensors of a graph that have their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import Entry, Graph


def entries_of(graph: Graph) -> Mapping[str, Entry]:
    """Return a graph's entries; of a graph that was not imported, its weights under their own names."""
    weights = (tensor for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init is not None)
    return graph.entries or {tensor.name: Entry(tensor.name, tensor.shape, tensor.dtype) for tensor in weights}


def content_digest(content: NDArray[np.generic]) -> str:
    """Return what only entries of the same content have in common."""
    return sha256(np.ascontiguousarray(content).tobytes()).hexdigest()


def groups(coarse: Sequence[int], fine: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Return, for each dimension of `coarse`, the dimensions of `fine` that it runs over; None where there are none.

    The elements of both lie in the same order. Every dimension of `fine` is in one group; one of a single element may
    be in any.
    """
    found: list[list[int]] = []
    at = 0
    for extent in coarse:
        own: list[int] = []
        while at < len(fine) and (prod(fine[axis] for axis in own) < extent or (not own and fine[at] == 1)):
            own.append(at)
            at += 1
        found.append(own)
    if found:
        found[-1] += range(at, len(fine))
    elif fine:
        return None
    fits = all(prod(fine[axis] for axis in own) == extent for own, extent in zip(found, coarse, strict=True))
    return tuple(map(tuple, found)) if fits else None
