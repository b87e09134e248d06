"""Programs of one task, or of one transfer, written by hand: what calibration times beside whole plans."""

from __future__ import annotations

from math import prod

from planner.graph.ir import ITEM_BYTES
from planner.program.arena import align
from planner.program.tasks import (
    Buffer,
    Compute,
    Kernel,
    Message,
    Piece,
    Receive,
    Send,
    SlicedCall,
    Slices,
    Task,
    Wait,
    WorkerProgram,
)
from topologies.kernels import Product

Array = tuple[str, tuple[int, ...], str, str]
"""A buffer's name, shape, dtype and kind."""


def product_program(dtype: str, m: int, n: int, k: int) -> WorkerProgram:
    """Return the program of one product of [m, k] by [k, n] matrices."""
    arrays = (("a", (m, k), dtype, "persistent"), ("b", (k, n), dtype, "persistent"), ("c", (m, n), dtype, "tensor"))
    places = [(number, _whole(shape)) for number, (_, shape, _, _) in enumerate(arrays)]
    ranges = {"i": (0, m), "j": (0, n), "k": (0, k)}
    call = SlicedCall(tuple(places[:2]), tuple(places[2:]), ranges, ((0, 0), (0, 0)), None)
    kernel = Kernel("product", "mm", {"extents": {"i": m, "j": n, "k": k}}, (call,))
    touched = sum(prod(shape) * ITEM_BYTES[dtype] for _, shape, dtype, _ in arrays)
    return _program(0, (Compute((kernel,), "matmul", 2.0 * m * n * k, touched, (Product(1, m, n, k),)),), *arrays)


def exchange_program(rank: int, size: int, nbytes: int) -> WorkerProgram:
    """Return the program of a rank that exchanges so many bytes with its neighbour, if it has one: 0 with 1, ..."""
    everything = (slice(0, nbytes),)
    message = Message(rank ^ 1, (Piece(everything, everything, nbytes),), nbytes, 0)
    tasks = Send(0, 0, 2, (message,)), Receive(0, 1, 3, (message,), ()), Wait(0)
    kinds = {"own": "persistent", "received": "fetch", "out": "staging", "in": "staging"}
    arrays = [(name, (nbytes,), "uint8", kind) for name, kind in kinds.items()]
    return _program(rank, tasks if rank ^ 1 < size else (), *arrays)


def _program(worker: int, tasks: tuple[Task, ...], *arrays: Array) -> WorkerProgram:
    """Lay buffers one behind the other, all for the whole program."""
    buffers: list[Buffer] = []
    offset = 0
    for name, shape, dtype, kind in arrays:
        nbytes = prod(shape) * ITEM_BYTES.get(dtype, 1)
        buffers.append(Buffer(name, shape, dtype, nbytes, offset, 0, max(0, len(tasks) - 1), kind))
        offset += align(nbytes)
    return WorkerProgram(worker, tasks, tuple(buffers), offset)


def _whole(shape: tuple[int, ...]) -> Slices:
    return tuple(slice(0, extent) for extent in shape)
