"""Programs written by hand, with what they must compute."""

from math import prod

import numpy as np

from planner.program.tasks import (
    Buffer,
    Compute,
    Kernel,
    LocalCopy,
    Message,
    Piece,
    Receive,
    Send,
    SlicedCall,
    Wait,
    WorkerProgram,
)

WORKERS = 3
EACH = 2
ALL = WORKERS * EACH


def buffers(*given):
    """Buffers one behind the other, from (name, shape, dtype, kind)."""
    laid, at = [], 0
    for name, shape, dtype, kind in given:
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        laid.append(Buffer(name, shape, dtype, nbytes, at, 0, 99, kind))
        at += -(-nbytes // 64) * 64
    return tuple(laid), at


def program(tasks, *given, worker=0):
    laid, arena_bytes = buffers(*given)
    return WorkerProgram(worker, tuple(tasks), laid, arena_bytes)


def compute(op, inputs, outputs, attributes=(), combine=None):
    """One kernel call on (buffer, slices) pairs."""
    return compute_all((op, [(inputs, outputs, combine)], dict(attributes)))


def compute_all(*kernels):
    """One task of several kernels, each (op, [(inputs, outputs, combine)], attributes)."""
    kernels = tuple(
        Kernel(op, op, attributes, tuple(SlicedCall(tuple(i), tuple(o), {}, ((),) * len(i), c) for i, o, c in calls))
        for op, calls, attributes in kernels
    )
    return Compute(kernels, "other", 0.0, 0)


def piece(source, target):
    return Piece((source,), (target,), source.stop - source.start)


def at(worker):
    return slice(worker * EACH, (worker + 1) * EACH)


def exchange(worker, reducer):
    """All workers gather a vector of ALL, multiply it by worker + 1, and reduce each share with its owner.

    Buffers: 0 own share, 1 gathered, 2 multiplied, 3 staging out, 4 staging in, 5 reduced share.
    """
    own, everything = slice(0, EACH), slice(0, ALL)
    peers = [peer for peer in range(WORKERS) if peer != worker]
    share = EACH * 8

    def messages(pieces):
        return tuple(Message(peer, (pieces(peer),), share, n * share) for n, peer in enumerate(peers))

    tasks = (
        Send(0, 0, 3, messages(lambda peer: piece(own, at(worker)))),
        Receive(0, 1, 4, messages(lambda peer: piece(own, at(peer))), (LocalCopy(0, (piece(own, at(worker)),)),)),
        Wait(0),
        compute("scale", [(1, (everything,))], [(2, (everything,))], {"factor": worker + 1}),
        Send(1, 2, 3, messages(lambda peer: piece(at(peer), own))),
        Receive(
            1, 5, 4, messages(lambda peer: piece(at(worker), own)), (LocalCopy(2, (piece(at(worker), own),)),), reducer
        ),
        Wait(1),
    )
    staging = ((WORKERS - 1) * share,)
    return program(
        tasks,
        ("own", (EACH,), "float64", "persistent"),
        ("gathered", (ALL,), "float64", "fetch"),
        ("multiplied", (ALL,), "float64", "partial"),
        ("out", staging, "uint8", "staging"),
        ("in", staging, "uint8", "staging"),
        ("reduced", (EACH,), "float64", "reduce"),
        worker=worker,
    )


def expected(own, reducer):
    """What `exchange` leaves in the reduced share of a worker that owns `own`."""
    function = {"Sum": np.add, "Prod": np.multiply, "Max": np.maximum, "Min": np.minimum}[reducer]
    return function.reduce([(worker + 1) * own for worker in range(WORKERS)])
