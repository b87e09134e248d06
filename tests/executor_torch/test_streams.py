"""Kernels of PyTorch are queued on the stream of CuPy's, whatever stream is PyTorch's current one."""

import pytest

pytest.importorskip("torch")
import executor.torch  # noqa: F401  # enters its kernels
from executor import backend
from executor.arena import Arena
from executor.cluster import single_rank
from executor.kernels import LIBRARIES
from executor.torch import on_stream_of
from executor.transport.messages import Messages
from executor.worker import Worker
from tests import cupy_double
from tests.cupy_double.torch_streams import NULL, OnOneStream, StreamError, Streams
from tests.executor.programs import compute, program

PART = (slice(0, 4),)


@pytest.fixture
def streams(monkeypatch):
    return Streams(monkeypatch.setattr)


@pytest.fixture
def cupy():
    with cupy_double.installed() as double, double.cuda.Stream(null=True):
        yield double


def scaled(cupy):
    """Return a worker that doubles four elements by PyTorch's kernel."""
    laid = ("a", (4,), "float32", "persistent"), ("b", (4,), "float32", "tensor")
    here = program([compute("scale", [(0, PART)], [(1, PART)], {"factor": 2.0})], *laid)
    arena = Arena(cupy, here.arena_bytes)
    worker = Worker(here, arena, lambda memory: Messages(memory, 1), kernels=LIBRARIES["torch"])
    worker.memory.views[0][...] = 3
    return worker


@pytest.mark.parametrize("own", [True, False], ids=["a stream of its own", "the null stream"])
def test_kernels_are_queued_behind_cupys(streams, cupy, own):
    """In every step of a worker; what PyTorch has queued before, as on the user's own stream, comes first."""
    if own:
        single_rank(1).use_device(cupy)
    pointer = cupy.cuda.get_current_stream().ptr
    assert (pointer != NULL) == own
    worker = scaled(cupy)
    with OnOneStream(streams, cupy):
        for _ in range(2):
            worker.run()
    assert worker.memory.views[1].get().tolist() == [6] * 4
    assert streams.waits == [(pointer, NULL)] * 2
    assert on_stream_of in backend.ON_STREAM
    assert streams.current.pointer == NULL


def test_a_kernel_on_another_stream_is_found(streams, cupy):
    worker = scaled(cupy)
    single_rank(1).use_device(cupy)
    with OnOneStream(streams, cupy), pytest.raises(StreamError, match="on the stream 0, CuPy's is"):
        worker._actions[0]()
