"""The double refuses what CuPy refuses, and notices what a GPU would not tell."""

import numpy as np
import pytest
from mpi4py import MPI
from operator_verification import CheckOptions, check_operator

from executor.arena import Arena, Memory
from executor.backend import array_module, asnumpy
from executor.kernels import KERNELS
from executor.transport.messages import Mirrored
from executor.transport.point_to_point import PointToPoint
from executor.worker import Worker
from planner.program.tasks import Buffer, Message, Piece, Receive, Wait, WorkerProgram

pytestmark = pytest.mark.usefixtures("cupy")


def test_the_executor_finds_it_as_cupy(cupy):
    assert array_module("auto") is cupy
    assert np.array_equal(asnumpy(cupy.arange(3) * 2), [0, 2, 4])


def test_fresh_memory_is_no_number(cupy):
    assert np.isnan(cupy.empty(3).get()).all()
    assert np.isnan(cupy.ndarray((2, 2), np.float32).get()).all()


REFUSED = {
    "a copy to the host": (lambda cp, a: np.asarray(a), TypeError, r"Implicit conversion.*`\.get\(\)`"),
    "a reduction of NumPy's": (lambda cp, a: np.add.reduce(a), TypeError, "add.reduce of NumPy"),
    "a function of NumPy's": (lambda cp, a: np.concatenate([a, a]), TypeError, "concatenate of NumPy"),
    "an operand on the host": (lambda cp, a: cp.add(a, np.ones(4)), TypeError, "Unsupported type .*numpy.ndarray"),
    "an operator's operand on the host": (lambda cp, a: a + np.ones(4), TypeError, "Unsupported type"),
    "an assignment from the host": (lambda cp, a: a.__setitem__(0, np.ones(1)), TypeError, "Unsupported type"),
    "a name that is NumPy's alone": (lambda cp, a: cp.nested_iters, AttributeError, "no attribute 'nested_iters'"),
    "a method that is NumPy's alone": (lambda cp, a: a.newbyteorder(), AttributeError, "no attribute 'newbyteorder'"),
    "a keyword that is NumPy's alone": (lambda cp, a: cp.sum(a, initial=0), TypeError, "sum .*unexpected keyword"),
    "a method's keyword": (lambda cp, a: a.max(initial=0), TypeError, "max .*unexpected keyword"),
    "an output of the smallest": (lambda cp, a: cp.amin(a, out=cp.zeros(())), TypeError, "NotImplemented.*equal"),
    "an array beside a dtype": (lambda cp, a: a == np.dtype("f8"), TypeError, "Unsupported type"),
    "a function of NumPy's beside a dtype": (lambda cp, a: np.equal(a, np.dtype("f8")), TypeError, "Unsupported type"),
    "an element-wise keyword": (lambda cp, a: cp.add(a, a, where=a > 0), TypeError, "Wrong arguments .*where"),
    "an element-wise loop": (lambda cp, a: cp.logaddexp(a.astype(complex), a), TypeError, "logaddexp"),
    "an index on the host": (lambda cp, a: a[np.arange(2)], IndexError, "not indexed by .*ndarray"),
    "two values for one place": (lambda cp, a: a.__setitem__(cp.asarray(np.array([1, 1])), 0), IndexError, "twice"),
    "an address beyond the memory": (
        lambda cp, a: cp.ndarray(8, memptr=cp.cuda.MemoryPointer(cp.cuda.Memory(32), 0)),
        RuntimeError,
        "cudaErrorIllegalAddress",
    ),
    "a copy between two dtypes": (lambda cp, a: a.set(np.zeros(4, np.float32)), TypeError, "cannot be set"),
    "NumPy's address": (lambda cp, a: a.ctypes, AttributeError, "no attribute 'ctypes'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cupy_does_not_take_is_refused(cupy, what):
    action, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        action(cupy, cupy.zeros(4))


def with_keyword_of_numpy(call):
    call.xp.add(call.inputs[0], call.inputs[1], out=call.outputs[0], where=True)


def through_the_host(call):
    call.outputs[0][...] = np.add(np.asarray(call.inputs[0]), np.asarray(call.inputs[1]))


@pytest.mark.parametrize("kernel", [with_keyword_of_numpy, through_the_host])
def test_a_kernel_for_numpy_alone_is_found(cupy, kernel):
    planted = {**KERNELS, "add": kernel}
    assert not check_operator("add", CheckOptions(cases=1, kinds=("kernel",))).failures
    verification = check_operator("add", CheckOptions(cases=1, kinds=("kernel",), xp=cupy, kernels=planted))
    assert len(verification.failures) == verification.checks > 0


def pinned(cupy, nbytes):
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def test_a_host_write_under_a_pending_upload_is_found(cupy):
    host, device = pinned(cupy, 8), cupy.zeros(8, np.uint8)
    device.set(host)
    cupy.cuda.get_current_stream().synchronize()
    host[...] = 1  # nothing is pending any more
    device.set(host)
    host[3] += 1
    with pytest.raises(RuntimeError, match="8 bytes of host memory were written that a pending copy reads"):
        cupy.cuda.get_current_stream().synchronize()


def test_an_event_ends_the_copies_before_it_alone(cupy):
    first, second, device = pinned(cupy, 4), pinned(cupy, 4), cupy.zeros(4, np.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)
    device.set(first, stream)
    event = stream.record()
    device.set(second, stream)
    event.synchronize()
    first[...] += 1
    second[...] += 1
    with pytest.raises(RuntimeError, match="a pending copy reads"):
        stream.synchronize()


def test_a_pending_download_brings_nothing_yet_and_bears_no_write(cupy):
    host, device = pinned(cupy, 4), cupy.full(4, 7, np.uint8)
    device.get(out=host, blocking=False)
    assert host.tolist() != [7] * 4
    cupy.cuda.get_current_stream().synchronize()
    assert host.tolist() == [7] * 4
    device.get(out=host, blocking=False)
    host[0] = 1
    with pytest.raises(RuntimeError, match="a pending copy writes"):
        cupy.cuda.get_current_stream().synchronize()


LENGTH = 16


def received_twice(cupy):
    """Receive two transfers, one after the other, into staging that takes up the same bytes."""
    everything = (slice(0, LENGTH),)
    message = Message(0, (Piece(everything, everything, LENGTH),), 4 * LENGTH, 0)
    laid = [("a", "int32", 0), ("b", "int32", 64), ("in a", "uint8", 128), ("in b", "uint8", 128)]
    buffers = tuple(
        Buffer(name, (64 if dtype == "uint8" else LENGTH,), dtype, 64, at, 0, 9, "staging" if at == 128 else "fetch")
        for name, dtype, at in laid
    )
    tasks = (Receive(0, 0, 2, (message,), ()), Wait(0), Receive(1, 1, 3, (message,), ()), Wait(1))
    program = WorkerProgram(0, tasks, buffers, 192)
    values = [np.arange(LENGTH, dtype=np.int32) * factor for factor in (1, -3)]
    sends = [MPI.COMM_SELF.Isend([data.view(np.uint8), MPI.BYTE], 0, tag) for tag, data in enumerate(values)]
    arena = Arena(cupy, program.arena_bytes)
    worker = Worker(program, arena, lambda memory: PointToPoint(memory, MPI.COMM_SELF, False))
    try:
        worker.run()
    finally:
        MPI.Request.Waitall(sends)
    return values, [asnumpy(worker.memory.views[number]) for number in (0, 1)]


def test_what_is_received_does_not_overtake_an_upload(cupy):
    expected, received = received_twice(cupy)
    assert np.array_equal(received, expected)


def test_without_waiting_for_uploads_it_would(cupy, monkeypatch):
    monkeypatch.setattr(Mirrored, "_await_uploads", lambda mirror, buffer: None)
    with pytest.raises(RuntimeError, match="64 bytes of host memory were written that a pending copy reads"):
        received_twice(cupy)


def test_memory_of_a_device_arena_is_its_own(cupy):
    program = WorkerProgram(0, (), (Buffer("a", (4,), "float32", 16, 0, 0, 9, "tensor"),), 64)
    memory = Memory(Arena(cupy, 64), program)
    memory.views[0][...] = 2
    assert memory.raw(program.buffers[0]).view(np.float32).get().tolist() == [2.0] * 4
