"""The caching allocator: PyTorch's rules by hand, what PyTorch itself was seen to take, and what workers ask for."""

import pytest

from planner.models import build
from planner.program.lower import lower
from planner.program.tasks import plan_arena
from planner.search import SearchOptions, search
from results.tofu_memory.caching import MIB, CachingAllocator, reserved_bytes, rounded
from results.tofu_memory.rules import peak_live_bytes, requests


def test_what_pytorch_takes_for_a_resnet_18():
    """44.6904296875 MiB, as torch.cuda.memory_allocated() said (github.com/pytorch/pytorch/issues/107667)."""
    float32, int64 = 4, 8

    def convolved(out, read, taps):  # a convolution, and its batch norm's weight, bias, mean, variance and counter
        return [out * read * taps * taps * float32, *[out * float32] * 4, int64]

    sizes = convolved(64, 3, 7)
    for out, read in ((64, 64), (128, 64), (256, 128), (512, 256)):
        sizes += convolved(out, read, 3) + convolved(out, out, 3)
        sizes += convolved(out, read, 1) if out != read else []
        sizes += convolved(out, out, 3) + convolved(out, out, 3)
    sizes += [512 * 1000 * float32, 1000 * float32]
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    assert allocator.allocated_bytes == 44.6904296875 * MIB
    assert sum(map(rounded, sizes)) < allocator.allocated_bytes  # some blocks were not worth splitting


def test_what_pytorch_takes_for_a_convolution_and_its_images():
    """294 MiB allocated, 296 MiB reserved (github.com/pytorch/pytorch/issues/69526)."""
    allocator = CachingAllocator()
    for size in (28 * 3 * 3 * 3 * 4, 28 * 4, 512 * 3 * 224 * 224 * 4):
        allocator.allocate(size)
    assert (allocator.allocated_bytes // MIB, allocator.reserved_bytes / MIB) == (294, 296)


MODELS = {"mlp-3-256": {}, "cnn-5-16": {"image": 16}, "wresnet-14-1": {"image": 32}, "rnn-2-128": {"unroll": 3}}


@pytest.mark.parametrize("model", MODELS)
def test_no_allocation_is_below_what_lives(model):
    program = lower(search(build(model, batch=16, **MODELS[model]), SearchOptions((2, 2), placements="S")))
    worker = max(program.workers, key=lambda worker: worker.arena_bytes)
    wanted = requests(worker)
    live = peak_live_bytes(wanted)
    assert live <= min(worker.arena_bytes, reserved_bytes(wanted), plan_arena([], wanted)[2])
