"""Kernels of PyTorch are queued on the stream of CuPy's, whatever stream is PyTorch's current one."""

from contextlib import contextmanager

import pytest

pytest.importorskip("torch")
import torch

from executor import backend
from executor.arena import Arena
from executor.cluster import single_rank
from executor.kernels import KernelSet
from executor.torch.streams import on_stream_of
from executor.transport.messages import Messages
from executor.worker import Worker
from tests import cupy_double
from tests.executor.programs import compute, program


class Streams:
    """The streams of a PyTorch with CUDA, of which it knows pointers; notes what waits for what."""

    def __init__(self):
        self.current, self.waits = "default", []

    def external(self, pointer, device):
        """Stand for torch.cuda.ExternalStream."""
        streams = self

        class Stream:
            name = pointer, str(device)

            def wait_stream(self, other):
                streams.waits.append((self.name, other))

        return Stream()

    @contextmanager
    def stream(self, entered):
        before, self.current = self.current, entered.name
        yield
        self.current = before


@pytest.fixture
def streams(monkeypatch):
    fake = Streams()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "ExternalStream", fake.external)
    monkeypatch.setattr(torch.cuda, "stream", fake.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: fake.current)
    return fake


def test_kernels_are_queued_behind_cupys(streams):
    """In a step of a worker; what PyTorch has queued before, as on the user's own stream, comes first."""
    seen = []

    def scale(call):
        seen.append(streams.current)
        call.outputs[0][...] = call.inputs[0]

    laid = ("a", (4,), "float32", "persistent"), ("b", (4,), "float32", "tensor")
    part = (slice(0, 4),)
    here = program([compute("scale", [(0, part)], [(1, part)], {"factor": 1.0})], *laid)
    with cupy_double.installed() as cupy:
        single_rank(1).use_device(cupy)
        stream = cupy.cuda.get_current_stream().ptr, "cuda:0"
        arena = Arena(cupy, here.arena_bytes)
        worker = Worker(
            here, arena, lambda memory: Messages(memory, 1), kernels=KernelSet("planted", {"scale": scale}, {})
        )
        worker.run()
        assert seen == [stream]
        assert streams.waits == [(stream, "default")]
        assert stream[0] != 0
        assert on_stream_of in backend.ON_STREAM
    assert streams.current == "default"
