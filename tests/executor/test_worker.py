import numpy as np
import pytest

from executor.arena import ALIGNMENT_BYTES, Arena, Memory
from executor.backend import asnumpy
from executor.cluster import single_rank
from executor.worker import Worker
from planner.program.tasks import LocalCopy, Receive, Send, Wait
from tests.executor.programs import compute, compute_all, piece, program

ALL = (slice(None),)
VECTOR = ("float64", "tensor")


def worker(written, xp=np):
    here = single_rank(1)
    arena = Arena(xp, written.arena_bytes)
    return Worker(written, arena, lambda memory: here.transport("p2p").transport(memory, here.comm, here.crowded))


def ran(written, xp, *given):
    """A worker after one iteration, before which its first buffers were set to what is given."""
    runner = worker(written, xp)
    for number, values in enumerate(given):
        runner.memory.views[number][...] = xp.asarray(values)
    runner.run()
    return runner


def get(runner, number):
    return asnumpy(runner.memory.views[number])


def test_arena_is_exact_and_aligned(xp):
    arena = Arena(xp, 1000)
    assert arena.bytes.nbytes == arena.nbytes == 1000
    address = arena.bytes.ctypes.data if xp is np else arena.bytes.data.ptr
    assert address % ALIGNMENT_BYTES == 0


def test_buffers_lie_where_the_program_says():
    written = program((), ("a", (3,), *VECTOR), ("b", (2, 2), "float32", "tensor"), ("c", (), "int32", "tensor"))
    arena = Arena(np, written.arena_bytes)
    memory = Memory(arena, written)
    assert [view.shape for view in memory.views] == [(3,), (2, 2), ()]
    memory.views[1][...] = [[1, 2], [3, 4]]
    memory.views[2][...] = 7
    first, last = written.buffers[1].offset, written.buffers[2].offset
    assert arena.bytes[first : first + 16].view(np.float32).tolist() == [1, 2, 3, 4]
    assert arena.bytes[last : last + 4].view(np.int32).tolist() == [7]


def test_a_buffer_outside_the_arena():
    written = program((), ("a", (3,), *VECTOR))
    with pytest.raises(ValueError, match=r"buffer a of worker 0: .*8 bytes, found \[0, 24\)"):
        Memory(Arena(np, 8), written)


def test_a_kernel_works_on_slices_and_leaves_the_rest(xp):
    task = compute("scale", [(0, (slice(1, 3),))], [(1, (slice(0, 2),))], {"factor": 10})
    runner = ran(program([task], ("x", (4,), *VECTOR), ("y", (4,), *VECTOR)), xp, [1, 2, 3, 4], [-1, -1, -1, -1])
    assert get(runner, 1).tolist() == [20, 30, -1, -1]


@pytest.mark.parametrize(
    ("reducer", "result"), [("Sum", [-7, 12]), ("Prod", [10, 20]), ("Max", [-2, 10]), ("Min", [-5, 2])]
)
def test_calls_of_one_node_combine(xp, reducer, result):
    calls = [([(0, (slice(0, 2),))], [(1, ALL)], None), ([(0, (slice(2, 4),))], [(1, ALL)], reducer)]
    task = compute_all(("scale", calls, {"factor": -1}))
    runner = ran(program([task], ("x", (4,), *VECTOR), ("y", (2,), *VECTOR)), xp, [5, -2, 2, -10])
    assert get(runner, 1).tolist() == result
    assert runner.outside_arena == {"partial results of one kernel call before they are combined": 64}


def test_a_chain_works_in_place(xp):
    chain = compute_all(
        ("scale", [([(0, ALL)], [(1, ALL)], None)], {"factor": -1}),
        ("relu", [([(1, ALL)], [(1, ALL)], None)], {}),
        ("add", [([(1, ALL), (0, ALL)], [(1, ALL)], None)], {}),
    )
    runner = ran(program([chain], ("x", (3,), *VECTOR), ("y", (3,), *VECTOR)), xp, [1, -2, 3])
    assert get(runner, 1).tolist() == [1, 0, 3]
    assert runner.outside_arena == {}


def test_scalars_are_written_through(xp):
    runner = ran(program([compute("increment", [(0, ())], [(0, ())])], ("t", (), *VECTOR)), xp, 41)
    runner.run()
    assert get(runner, 0) == 43


def test_a_fetch_copies_local_pieces_at_its_wait(xp):
    local = (LocalCopy(0, (piece(slice(0, 2), slice(1, 3)),)), LocalCopy(1, (piece(slice(1, 2), slice(0, 1)),)))
    late = compute("scale", [(0, ALL)], [(0, ALL)], {"factor": 2})
    tasks = [Send(0, 0, None, ()), Receive(0, 2, None, (), local), late, Wait(0)]
    written = program(tasks, ("a", (2,), *VECTOR), ("b", (2,), *VECTOR), ("c", (4,), *VECTOR))
    runner = ran(written, xp, [1, 2], [8, 9], [-1, -1, -1, -1])
    assert get(runner, 2).tolist() == [9, 2, 4, -1]


IDENTITIES = [("Sum", 0, 0), ("Prod", 1, 1), ("Max", -np.inf, np.iinfo("int32").min), ("Min", np.inf, 2**31 - 1)]


@pytest.mark.parametrize(("reducer", "of_floats", "of_integers"), IDENTITIES)
def test_a_reduce_starts_from_the_identity(xp, reducer, of_floats, of_integers):
    for dtype, identity in (("float32", of_floats), ("int32", of_integers)):
        tasks = [Receive(0, 1, None, (), (LocalCopy(0, (piece(slice(0, 1), slice(0, 1)),)),), reducer), Wait(0)]
        runner = ran(program(tasks, ("a", (1,), dtype, "partial"), ("b", (2,), dtype, "reduce")), xp, [5], [77, 77])
        assert get(runner, 1).tolist() == [5, identity]


def test_moments_are_one_more_than_tasks_and_never_go_back():
    task = compute("scale", [(0, ALL)], [(0, ALL)], {"factor": 1})
    runner = worker(program([task] * 5, ("x", (3,), *VECTOR)))
    moments = runner.run()
    assert len(moments) == 6
    assert moments == sorted(moments)
    assert len(worker(program([])).run()) == 1


def test_an_operator_without_a_kernel():
    with pytest.raises(ValueError, match="node nonsense: no kernel for operator nonsense"):
        worker(program([compute("nonsense", [], [])]))
