"""One node's work on one worker, cut into kernel calls on slices of local arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from planner.layout import Region, Runs, Signature, Strategy, needed, production
from planner.layout.geometry import reached, split_runs
from planner.layout.region import elements, length, offset
from planner.program.tasks import Slices

Bounds = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CallGeometry:
    """A kernel call without its buffers: slices per operand and output, ranges, origins, and how it combines."""

    inputs: tuple[Slices, ...]
    outputs: tuple[Slices, ...]
    ranges: Bounds
    origins: tuple[tuple[int, ...], ...]
    combine: str | None


@dataclass(frozen=True, slots=True)
class NodeWork:
    """A worker's calls of one node, with its operation count and the elements of each operand and output."""

    calls: tuple[CallGeometry, ...]
    operations: float
    input_elements: tuple[int, ...]
    output_elements: tuple[int, ...]


@lru_cache(maxsize=None)
def node_work(signature: Signature, strategy: Strategy, ways: tuple[int, ...], worker: int) -> NodeWork:
    """Return a worker's share of a node.

    A variable whose iterations must be contiguous (it stands in a window, or serves as a value) makes one call per
    run; any other is one range as long as its runs together.
    """
    description, extents = signature.description, signature.extents
    runs = split_runs(signature, strategy, ways, worker)
    needs = tuple(needed(signature, n, strategy, ways)[worker] for n in range(len(signature.shapes)))
    made = tuple(production(signature, n, strategy, ways).regions[worker] for n in range(len(signature.outputs)))
    apart = [name for name in runs if name in description.contiguous]
    together = {
        name: (runs[name][0][0], runs[name][0][0] + length(runs[name])) if name in runs else (0, extent)
        for name, extent in extents.items()
        if name not in apart
    }
    calls = []
    for chosen in product(*(runs[name] for name in apart)):
        bounds = {**together, **dict(zip(apart, chosen, strict=True))}
        calls.append(_call(signature, bounds, frozenset(apart), runs, needs, made))
    local = {name: length(runs[name]) if name in runs else extent for name, extent in extents.items()}
    return NodeWork(
        tuple(calls),
        description.operations(local),
        tuple(map(elements, needs)),
        tuple(map(elements, made)),
    )


def _call(
    signature: Signature,
    bounds: Bounds,
    apart: frozenset[str],
    runs: Mapping[str, Runs],
    needs: tuple[Region, ...],
    made: tuple[Region, ...],
) -> CallGeometry:
    description = signature.description
    inputs, origins = [], []
    for operand, need in enumerate(needs):
        indices = [access.index for access in description.accesses if access.operand == operand]
        slices, starts = [], []
        for dim, held in enumerate(need):
            found = _window([index[dim] for index in indices], signature, bounds, apart, dim, operand)
            slices.append(_local(held, found))
            starts.append(found[0] if found else held[0][0] if held else 0)
        inputs.append(tuple(slices))
        origins.append(tuple(starts))
    outputs = tuple(
        tuple(
            _local(held, bounds[index.variables[0]] if apart.intersection(index.variables) else None)
            for index, held in zip(output.index, region, strict=True)
        )
        for output, region in zip(description.outputs, made, strict=True)
    )
    summed = [name for name in apart if name in description.reduction_variables]
    first = all(bounds[name] == runs[name][0] for name in summed)
    return CallGeometry(
        tuple(inputs), outputs, bounds, tuple(origins), None if first else description.outputs[0].reducer
    )


def _window(
    indices: list, signature: Signature, bounds: Bounds, apart: frozenset[str], dim: int, operand: int
) -> tuple[int, int] | None:
    """Return the hull of what a call reads of one dimension, or None where it reads all that is held."""
    if not any(apart.intersection(index.variables) for index in indices):
        return None
    extent = signature.shapes[operand][dim]
    single = {name: (run,) for name, run in bounds.items() if name in apart}
    hulls = [run for index in indices for run in reached(index, signature.extents, single, extent)]
    return (min(low for low, _ in hulls), max(high for _, high in hulls)) if hulls else (0, 0)


def _local(held: Runs, window: tuple[int, int] | None) -> slice:
    if window is None:
        return slice(None)
    if window[0] == window[1]:
        return slice(0, 0)
    start = offset(held, window[0])
    return slice(start, start + window[1] - window[0])
