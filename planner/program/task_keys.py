"""Tasks as text: everything that their time on a processor depends on, in a form that a file can hold.

A kernel call is its operator, its attributes other than real numbers, and the dtype and shape of each operand and
result, followed by the shape of the array if it is only a part of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from planner.graph.infer import told_apart
from planner.graph.ir import FLOATING, ITEM_BYTES, Value
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
from topologies.kernels import BETWEEN_TASKS, REPEATED

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
