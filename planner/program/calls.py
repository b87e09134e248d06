"""One node's work on one worker, as kernel calls on slices of local arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import tdl
from planner.errors import PlanError
from planner.layout import Runs, Signature, Strategy, Ways, needed, production
from planner.layout.geometry import contraction, reached, share_of_groups, split_runs
from planner.layout.region import elements, length, offset
from planner.program.tasks import SlicedCall
from topologies.kernels import Product

Bounds = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NodeWork:
    """A worker's calls of one node, with its operation count and the elements of each operand and output.

    The calls refer to operands and outputs by number instead of by buffer. `products` are the shapes of the calls of a
    matrix product or convolution.
    """

    calls: tuple[SlicedCall, ...]
    operations: float
    input_elements: tuple[int, ...]
    output_elements: tuple[int, ...]
    products: tuple[Product, ...] = ()


def node_work(signature: Signature, strategy: Strategy, ways: Ways, worker: int) -> NodeWork:
    """Return a worker's share of a node."""
    return _NodeWorker(signature, strategy, ways, worker).work()


class _NodeWorker:
    """Split one node on one worker.

    A variable whose iterations must be contiguous (it appears in a window, or its value is used) makes one call per
    run; these variables are `apart`. The runs of any other variable are concatenated into one range.
    """

    def __init__(self, signature: Signature, strategy: Strategy, ways: Ways, worker: int) -> None:
        self.signature = signature
        self.description = signature.description
        self.runs = split_runs(signature, strategy, ways, worker)
        self.needs = [needed(signature, n, strategy, ways)[worker] for n in range(len(signature.shapes))]
        outputs = range(len(signature.outputs))
        self.produced = [production(signature, n, strategy, ways).regions[worker] for n in outputs]
        self.apart = [name for name in self.runs if name in self.description.contiguous]

    def work(self) -> NodeWork:
        counts = tuple(map(elements, self.needs)), tuple(map(elements, self.produced))
        if not all(self.runs.values()):  # another worker runs it
            return NodeWork((), 0.0, *counts)
        extents = self.signature.extents
        together = {name: self._together(name) for name in extents if name not in self.apart}
        calls = tuple(
            self._call({**together, **dict(zip(self.apart, chosen, strict=True))})
            for chosen in product(*(self.runs[name] for name in self.apart))
        )
        held = {name: length(self.runs[name]) if name in self.runs else extent for name, extent in extents.items()}
        operations = self.description.operations(held) * share_of_groups(self.signature, held)
        form = contraction(self.signature)
        sizes = [{name: stop - start for name, (start, stop) in call.ranges.items()} for call in calls]
        products = () if form is None else tuple(map(form.product, sizes))
        return NodeWork(calls, operations, *counts, products)

    def _together(self, name: str) -> tuple[int, int]:
        runs = self.runs.get(name, ((0, self.signature.extents[name]),))
        return runs[0][0], runs[0][0] + length(runs)

    def _call(self, bounds: Bounds) -> SlicedCall:
        windows = [
            [self._window(self._indices(operand, dim), extent, bounds) for dim, extent in enumerate(shape)]
            for operand, shape in enumerate(self.signature.shapes)
        ]
        inputs = tuple(tuple(map(_local, *pair)) for pair in zip(self.needs, windows, strict=True))
        origins = tuple(tuple(map(_origin, *pair)) for pair in zip(self.needs, windows, strict=True))
        outputs = tuple(
            tuple(
                _local(held, self._window([index], extent, bounds))
                for held, index, extent in zip(region, output.index, shape, strict=True)
            )
            for region, output, shape in zip(
                self.produced, self.description.outputs, self.signature.outputs, strict=True
            )
        )
        summed = [name for name in self.apart if name in self.description.reduction_variables]
        first = all(bounds[name] == self.runs[name][0] for name in summed)
        combine = None if first else self.description.outputs[0].reducer
        return SlicedCall(tuple(enumerate(inputs)), tuple(enumerate(outputs)), bounds, origins, combine)

    def _indices(self, operand: int, dim: int) -> list[tdl.Index]:
        return [access.index[dim] for access in self.description.accesses if access.operand == operand]

    def _window(self, indices: Sequence[tdl.Index], extent: int, bounds: Bounds) -> tuple[int, int] | None:
        """Return the range that a call reads of one dimension; None if it reads everything that is held."""
        single = {name: (bounds[name],) for name in self.apart}
        hulls: list[tuple[int, int]] = []
        if not indices or not all(set(single) & set(index.variables) for index in indices):
            return None
        for index in indices:
            ranges = reached(index, self.signature.extents, single, extent)
            if isinstance(index, tdl.Digits) and len(ranges) > 1:
                raise PlanError(
                    f"{self.signature.op}: {', '.join(index.variables)} are merged into one dimension, of which "
                    f"{' and '.join(single)} must run contiguously and cannot be split; choose another variable"
                )
            hulls += ranges
        if not hulls:
            return 0, 0
        return min(low for low, _ in hulls), max(high for _, high in hulls)


def _local(held: Runs, window: tuple[int, int] | None) -> slice:
    if window is None:
        return slice(None)
    if window[0] == window[1]:
        return slice(0, 0)
    start = offset(held, window[0])
    return slice(start, start + window[1] - window[0])


def _origin(held: Runs, window: tuple[int, int] | None) -> int:
    if window is not None:
        return window[0]
    return held[0][0] if held else 0
