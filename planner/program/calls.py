"""One node's work on one worker, as kernel calls on slices of local arrays; and tasks as text.

The text of a task has everything that its time on a processor depends on, in a form that a file can hold. A kernel call
is its operator, its attributes other than real numbers, and the dtype and shape of each operand and result, followed by
the shape of the array if it is only a part of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product

import tdl
from planner.errors import PlanError
from planner.graph.infer import told_apart
from planner.graph.ir import FLOATING, ITEM_BYTES, Value
from planner.layout import Runs, Signature, Strategy, Ways, needed, production
from planner.layout.geometry import contraction, reached, share_of_groups, split_runs
from planner.layout.region import elements, length, offset
from planner.program.tasks import (
    Compute,
    Kernel,
    Message,
    Piece,
    Receive,
    Send,
    SlicedCall,
    Slices,
    WorkerProgram,
    extents,
)
from topologies import TransferAmounts
from topologies.kernels import BETWEEN_TASKS, REPEATED, Product

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


Shape = tuple[int, ...]


def spelled_compute(worker: WorkerProgram, task: Compute) -> str:
    """Return the calls of a compute task as text, in order; consecutive equal calls are counted."""
    calls = (_call(worker, kernel, call) for kernel in task.kernels for call in kernel.calls)
    counted = ((text, sum(1 for _ in same)) for text, same in groupby(calls))
    return BETWEEN_TASKS.join(text if count == 1 else f"{count}{REPEATED}{text}" for text, count in counted)


def computed_dtype(worker: WorkerProgram, task: Compute) -> str:
    """Return the dtype that a task computes in: that of its first floating-point output, else of its first output."""
    outputs = [buffer for kernel in task.kernels for call in kernel.calls for buffer, _ in call.outputs]
    dtypes = [worker.buffers[buffer].dtype for buffer in outputs]
    return next((dtype for dtype in dtypes if dtype in FLOATING), dtypes[0] if dtypes else "float32")


def sent(worker: WorkerProgram, task: Send) -> TransferAmounts:
    """Return the amounts that a worker packs and sends."""
    shape = worker.buffers[task.buffer].shape
    return _moved(task.messages, [_runs(piece.source_slices, shape) for piece in _pieces(task.messages)])


def posted(task: Receive) -> TransferAmounts:
    """Return the amounts that a worker starts to receive."""
    return TransferAmounts(messages=sum(message.nbytes > 0 for message in task.messages))


def received(worker: WorkerProgram, task: Receive) -> TransferAmounts:
    """Return the amounts that a worker unpacks or combines, including its own pieces and filling a combined buffer."""
    buffer = worker.buffers[task.buffer]
    runs = [_runs(piece.target_slices, buffer.shape) for piece in _pieces(task.messages)]
    elements = 0
    for copy in task.local:
        source = worker.buffers[copy.buffer].shape
        for piece in copy.pieces:
            runs.append(max(_runs(piece.target_slices, buffer.shape), _runs(piece.source_slices, source)))
            elements += piece.elements
    moved = _moved(task.messages, runs)
    own = elements * ITEM_BYTES[buffer.dtype] + (buffer.nbytes if task.reducer is not None else 0)
    return TransferAmounts(moved.messages, moved.pieces, moved.runs, moved.nbytes + own)


def _moved(messages: Iterable[Message], runs: list[int]) -> TransferAmounts:
    sizes = [message.nbytes for message in messages if message.nbytes]
    return TransferAmounts(len(sizes), len(runs), sum(runs), sum(sizes))


def _pieces(messages: Iterable[Message]) -> Iterator[Piece]:
    return (piece for message in messages for piece in message.pieces)


def _runs(slices: Slices, shape: Shape) -> int:
    """Return the number of contiguous runs of memory in a box of an array."""
    part = extents(slices, shape)
    together = 1
    for size, extent in zip(reversed(part), reversed(shape), strict=True):
        together *= size
        if size != extent:
            break
    return math.prod(part) // together if together else 0


def _call(worker: WorkerProgram, kernel: Kernel, call: SlicedCall) -> str:
    operands, results = (
        " ".join(_operand(worker, buffer, slices) for buffer, slices in side) for side in (call.inputs, call.outputs)
    )
    combined = " combined" if call.combine is not None else ""
    return f"{kernel.op}{_attributes(told_apart(kernel.op, kernel.attributes))} {operands} -> {results}{combined}"


def _attributes(attributes: Mapping[str, Value]) -> str:
    told = {name: value for name, value in attributes.items() if name != "extents" and not isinstance(value, float)}
    text = ",".join(f"{name}={told[name]}" for name in sorted(told))
    return f"({''.join(text.split())})" if text else ""


def _operand(worker: WorkerProgram, number: int, slices: Slices) -> str:
    buffer = worker.buffers[number]
    part = extents(slices, buffer.shape)
    whole = "" if part == buffer.shape else f"of{_bracketed(buffer.shape)}"
    return f"{buffer.dtype}{_bracketed(part)}{whole}"


def _bracketed(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"
