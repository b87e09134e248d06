"""The caching allocator: PyTorch's rules by hand, what PyTorch itself was seen to take, and what workers ask for."""

import pytest
from hypothesis import given, strategies as st

from planner.models import build
from planner.program.lower import lower
from planner.program.tasks import Compute, Storage, WorkerProgram, plan_arena
from planner.search import SearchOptions, search
from results.lifetimes import holders
from results.tofu_memory.caching import MIB, CachingAllocator, reserved_bytes, rounded, segment_bytes
from results.tofu_memory.rules import peak_live_bytes, requests
from simulator.memory import overwritten
from tests.simulator.programs import buffer


@pytest.mark.parametrize(("asked", "taken"), [(1, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (MIB + 1, MIB + 512)])
def test_sizes_are_rounded_up_to_512_bytes(asked, taken):
    assert rounded(asked) == taken


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2),
        (MIB, 2),
        (MIB + 512, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (10 * MIB + 512, 12),
        (12 * MIB, 12),
        (1000 * MIB, 1000),
    ],
)
def test_segments(size, segment):
    assert segment_bytes(size) == segment * MIB


def taken(allocator):
    return allocator.allocated_bytes / MIB, allocator.reserved_bytes / MIB


def test_small_requests_share_segments_of_their_own():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(MIB), allocator.allocate(MIB)]
    assert taken(allocator) == (2, 2)
    allocator.allocate(1)  # a second segment
    assert allocator.reserved_bytes == 4 * MIB
    allocator.allocate(3 * MIB)  # a large one, although 2 MiB - 512 bytes are free
    assert allocator.reserved_bytes == 24 * MIB
    for block in blocks:
        allocator.free(block)
    assert allocator.allocated_bytes == 512 + 3 * MIB
    assert allocator.reserved_bytes == 24 * MIB  # segments are kept


def test_a_large_block_is_split_where_more_than_1_mib_remains():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(2 * MIB))  # leaves 20 MiB free
    whole = allocator.allocate(19 * MIB)  # exactly 1 MiB would remain
    assert (whole.size, taken(allocator)) == (20 * MIB, (20, 20))
    allocator.free(whole)
    part = allocator.allocate(19 * MIB - 512)
    assert (part.size, allocator.allocated_bytes) == (19 * MIB - 512, 19 * MIB - 512)


def test_neighbours_that_are_free_join():
    allocator = CachingAllocator()
    a, b, c = (allocator.allocate(6 * MIB) for _ in range(3))  # 6, 6, 6, and 2 free
    allocator.free(a)
    allocator.free(c)  # joins the 2 behind it
    d = allocator.allocate(12 * MIB)  # neither 6 nor 8 hold it
    assert taken(allocator) == (18, 32)
    allocator.free(b)  # joins both sides: 20
    allocator.allocate(20 * MIB)
    assert taken(allocator) == (32, 32)
    assert d.before is None
    assert d.after is None


def test_the_smallest_block_that_holds_it_and_of_those_the_first():
    allocator = CachingAllocator()
    large, small, same = (allocator.allocate(size * MIB) for size in (40, 30, 30))
    for block in (same, large, small):
        allocator.free(block)
    assert allocator.allocate(30 * MIB).address == small.address
    assert allocator.allocate(25 * MIB).address == same.address  # the rest of 5 stays free
    assert allocator.allocate(5 * MIB).address == same.address + 25 * MIB


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


def test_requests_come_before_what_ends_at_their_position_is_given_back():
    storage = Storage(10 * MIB, 0, 1)
    assert reserved_bytes([storage, Storage(10 * MIB, 1, 1)]) == 20 * MIB
    assert reserved_bytes([storage, Storage(10 * MIB, 2, 2)]) == 10 * MIB
    assert reserved_bytes([Storage(0, 0, 9)]) == 0


SIZES = st.one_of(st.integers(1, 3000), st.integers(1, 3 * MIB), st.integers(8 * MIB, 40 * MIB))


@given(st.lists(st.tuples(SIZES, st.integers(0, 30)), max_size=60))
def test_blocks_never_overlap_and_come_back_whole(steps):
    """Each step takes a block and gives one back; in the end every segment is one free block again."""
    allocator, held = CachingAllocator(), []
    for size, number in steps:
        block = allocator.allocate(size)
        assert block.size >= size
        assert all(block.address >= b.address + b.size or b.address >= block.address + block.size for b in held)
        held.append(block)
        assert allocator.reserved_bytes >= allocator.allocated_bytes == sum(b.size for b in held)
        if number < len(held):
            allocator.free(held.pop(number))
    for block in held:
        allocator.free(block)
    assert allocator.allocated_bytes == 0


MODELS = {"mlp-3-256": {}, "cnn-5-16": {"image": 16}, "wresnet-14-1": {"image": 32}, "rnn-2-128": {"unroll": 3}}


def test_what_overwrites_in_place_has_one_holder():
    buffers = [buffer("a", 40, 0, 1), buffer("b", 40, 1, 2), buffer("c", 40, 2, 3), buffer("d", 40, 4, 4)]
    worker = WorkerProgram(0, (Compute((), "other", 0.0, 0),) * 5, tuple(buffers), 0)
    assert overwritten(worker) == {0: 1, 1: 2}
    assert holders(worker) == [0, 0, 0, 3]


@pytest.mark.parametrize("model", MODELS)
def test_no_allocation_is_below_what_lives(model):
    program = lower(search(build(model, batch=16, **MODELS[model]), SearchOptions((2, 2), placements="S")))
    worker = max(program.workers, key=lambda worker: worker.arena_bytes)
    wanted = requests(worker)
    live = peak_live_bytes(wanted)
    assert live <= min(worker.arena_bytes, reserved_bytes(wanted), plan_arena([], wanted)[2])
