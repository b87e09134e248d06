from dataclasses import replace

import numpy as np
import pytest

from executor.arena import Arena, Memory, packing, unpacking
from executor.transport.messages import Mirrored, Staging, staging
from planner.program.tasks import Message, Piece, WorkerProgram
from tests import cupy_double
from tests.executor.programs import buffers, program

MATRIX = ("a", (4, 6), "float32", "tensor")


def memory(xp=np):
    written = program((), MATRIX, ("out", (200,), "uint8", "staging"), ("b", (4, 6), "float32", "fetch"))
    return Memory(Arena(xp, written.arena_bytes), written)


def corner(rows, columns):
    return (slice(rows), slice(columns))


def test_pieces_lie_packed_one_after_the_other_and_come_out_again():
    here = memory()
    here.views[0][...] = np.arange(24).reshape(4, 6)
    pieces = (
        Piece(corner(2, 3), (slice(2, 4), slice(3, 6)), 6),
        Piece((slice(3, 4), slice(0, 6, 2)), (slice(0, 1), slice(0, 3)), 3),
    )
    out = Message(1, pieces, 36, 8)
    for target, source in packing(here, 1, 0, out):
        target[...] = source
    packed = here.views[1][8:44].view(np.float32)
    assert packed.tolist() == [0, 1, 2, 6, 7, 8, 18, 20, 22]
    here.views[2].fill(-1)
    for target, source in unpacking(here, 1, 2, Message(1, pieces, 36, 8)):
        target[...] = source
    assert here.views[2][2:, 3:].tolist() == [[0, 1, 2], [6, 7, 8]]
    assert here.views[2][0].tolist() == [18, 20, 22, -1, -1, -1]


@pytest.mark.parametrize("nbytes", [20, 28])
def test_a_message_that_its_pieces_do_not_fill(nbytes):
    message = Message(1, (Piece(corner(2, 3), corner(2, 3), 6),), nbytes, 0)
    with pytest.raises(ValueError, match=rf"workers 0 and 1 of buffer a: expected {nbytes} bytes .*byte 24"):
        packing(memory(), 1, 0, message)


def test_staging_of_host_memory_is_the_arena_itself():
    here = memory()
    kept = staging(here)
    assert type(kept) is Staging
    assert np.shares_memory(kept.host(here.views[1]), here.views[1])
    assert kept.outside_arena == {}


def test_the_mirror_reuses_memory_as_the_arena_does():
    laid, nbytes = buffers(
        ("a", (64,), "uint8", "staging"), ("b", (64,), "uint8", "tensor"), ("c", (10,), "uint8", "staging")
    )
    overlapping = replace(laid[0], name="d", shape=(32,), nbytes=32, offset=32)
    with cupy_double.installed() as cupy:
        arena = Arena(cupy, nbytes)
        arena.bytes[...] = cupy.arange(nbytes, dtype=cupy.uint8)
        device = Memory(arena, WorkerProgram(0, (), (*laid, overlapping), nbytes))
        mirror = Mirrored(device)
        staged = {number: device.raw(device.buffers[number]) for number in (0, 2, 3)}
        assert mirror.outside_arena == {}
        assert np.shares_memory(mirror.host(staged[0]), mirror.host(staged[3]))
        assert not np.shares_memory(mirror.host(staged[0]), mirror.host(staged[2]))
        assert mirror.outside_arena == {"host copy of staging": 74}
        for data in staged.values():
            mirror.start([(1, data)], [])
            assert mirror.host(data).tolist() == data.get().tolist()
        mirror.host(staged[2])[...] = 5
        mirror.end([(1, staged[2])])
        assert arena.bytes[127:138].get().tolist() == [127] + [5] * 10


@pytest.mark.parametrize("xp", ["double", pytest.param("cupy", marks=pytest.mark.gpu)], indirect=True)
def test_staging_of_a_device(xp):
    here = memory(xp)
    kept = staging(here)
    here.views[1][...] = xp.arange(200, dtype=xp.uint8)
    kept.start([(1, here.views[1])], [])
    assert kept.host(here.views[1]).tolist() == list(range(200))
    kept.host(here.views[1])[...] = 3
    kept.end([(1, here.views[1])])
    assert (here.views[1] == 3).all()
