"""Memory over time: what lives when, the peak, and the verdict."""

import pytest

from simulator import interpret, simulated
from simulator.memory import device_memories
from tests.simulator.programs import buffer, compute, program, shared_processor, star


def peak(one, machine):
    (memory, *_) = device_memories(one, interpret(one, machine), machine)
    return memory


def test_peak_its_moment_and_the_largest_buffers():
    own = [
        buffer("w", 100, 0, 2, kind="persistent", offset=0),
        buffer("a", 200, 0, 1, offset=100),
        buffer("b", 80, 1, 2, offset=300),
        buffer("c", 120, 2, 2, offset=100),
    ]
    # 1 s: w a = 300; then w a b = 380 until 3 s; then w b c = 300
    one = program([compute(100), compute(200), compute(300)], buffers={0: own}, arena=380)
    memory = peak(one, star())
    assert (memory.peak_bytes, memory.peak_at_s, memory.verdict) == (380, pytest.approx(1), "fits")
    assert [(use.name, use.worker, use.nbytes) for use in memory.largest] == [
        ("a", 0, 200),
        ("w", 0, 100),
        ("b", 0, 80),
    ]
    assert (memory.device, memory.workers, memory.capacity_bytes) == ("d0.memory", (0,), 1000)


def test_a_task_takes_its_buffers_before_it_gives_back_others():
    own = [buffer("old", 100, 0, 1, offset=0), buffer("new", 60, 1, 1, offset=100)]
    assert peak(program([compute(1), compute(1)], buffers={0: own}, arena=160), star()).by_kind == {"results": 160}


def test_a_buffer_is_given_back_before_the_next_task():
    own = [buffer("old", 100, 0, 0, offset=0), buffer("new", 60, 1, 1, offset=100)]
    # also where tasks take no time
    memory = peak(program([compute(0), compute(0)], buffers={0: own}, arena=160), star())
    assert memory.by_kind == {"results": 100, "unused": 60}


def test_what_overwrites_in_place_counts_once():
    own = [buffer("before", 100, 0, 1, offset=0), buffer("after", 100, 1, 2, offset=0)]
    memory = peak(program([compute(1)] * 3, buffers={0: own}, arena=100), star())
    assert memory.by_kind == {"results": 100}
    assert [use.name for use in memory.largest] == ["before"]


@pytest.mark.parametrize(("arena", "verdict"), [(1000, "fits"), (1001, "out of memory")])
def test_the_verdict_is_the_arenas(arena, verdict):
    simulation = simulated(program([compute(100)], buffers={0: []}, arena=arena), star())
    assert simulation.memories[0].verdict == verdict
    assert bool(simulation.overfull) is (verdict == "out of memory")
    assert simulation.seconds == 1  # time is reported all the same


def test_workers_share_a_memory():
    # worker 0 holds 300 from 0 to 1, worker 1 holds 400 from 2 to 3 and 50 always: never together
    first = [buffer("a", 300, 0, 0)]
    second = [buffer("w", 52, 0, 0, kind="persistent", offset=400), buffer("b", 400, 1, 1)]
    one = program([compute(100)], [compute(200), compute(100)], buffers={0: first, 1: second}, arena=600)
    machine = shared_processor(3, 3)
    (memory,) = device_memories(one, interpret(one, machine), machine)
    assert (memory.device, memory.workers, memory.peak_bytes) == ("dram", (0, 1), 1200)
    assert memory.by_kind == {"persistent": 52, "results": 400, "unused": 748}
    assert memory.peak_at_s == pytest.approx(2)
    assert memory.verdict == "out of memory"  # two arenas of 600 in 1000


def test_memories_that_no_worker_uses_are_left_out():
    assert len(simulated(program([compute(1)]), star(3)).memories) == 1


def test_a_buffer_of_tasks_that_do_not_exist():
    with pytest.raises(ValueError, match="buffer a: expected tasks within 0 to 0, found 0 to 4"):
        peak(program([compute(1)], buffers={0: [buffer("a", 4, 0, 4)]}), star())
