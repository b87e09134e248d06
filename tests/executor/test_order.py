"""What ranks wait for, and tell, so that they can read each other's arenas."""

import random
from dataclasses import replace
from itertools import accumulate, product

import pytest

from executor.shared_memory import Block, map_memory
from executor.transport.shared import announcements, positions, waits
from planner.program.lower import lower
from planner.program.tasks import Compute, LocalCopy, Receive, Send, Wait
from tests.cross.cases import graph
from tests.cross.random_plans import random_plan
from tests.executor.programs import WORKERS, compute, exchange, program

ALL = (slice(None),)
ALIKE = [positions(exchange(0, "Sum").tasks)] * WORKERS
SEND_0, FETCH, WAIT_0, SCALE, SEND_1, REDUCE, WAIT_1, END = range(8)


def test_the_exchange_waits_for_what_it_reads_and_for_readers():
    """Nothing of the iteration overwrites what others read, so that readers are waited for at its end alone."""
    awaited = waits(exchange(0, "Sum"), ALIKE, lambda peer: True)
    assert awaited[WAIT_0] == {1: SEND_0 + 1, 2: SEND_0 + 1}
    assert awaited[WAIT_1] == {1: SEND_1 + 1, 2: SEND_1 + 1}
    assert awaited[END] == {1: WAIT_1 + 1, 2: WAIT_1 + 1}
    assert [awaited[n] for n in (SEND_0, FETCH, SCALE, SEND_1, REDUCE)] == [{}] * 5


def test_nobody_waits_for_those_who_send_messages():
    awaited = waits(exchange(0, "Sum"), ALIKE, lambda peer: peer == 2)
    assert all(finished.keys() <= {2} for finished in awaited)
    assert awaited[WAIT_0] == {2: SEND_0 + 1}
    assert waits(exchange(0, "Sum"), ALIKE, lambda peer: False) == [{}] * (END + 1)


def test_who_overwrites_waits_for_readers():
    whole = exchange(0, "Sum")
    late = compute("scale", [(1, ALL)], [(2, ALL)], {"factor": 1})
    awaited = waits(replace(whole, tasks=(*whole.tasks, late)), ALIKE, lambda peer: True)
    assert awaited[END] == {1: WAIT_1 + 1, 2: WAIT_1 + 1}
    assert awaited[END + 1] == {}


def test_a_source_that_is_overwritten_too_early():
    whole = exchange(0, "Sum")
    early = compute("scale", [(1, ALL)], [(2, ALL)], {"factor": 1})
    tasks = (*whole.tasks[:WAIT_1], early, whole.tasks[WAIT_1])
    with pytest.raises(ValueError, match=r"transfer 1 of worker 0: expected its source to stay until task 7, .*task 6"):
        waits(replace(whole, tasks=tasks), [positions(tasks)] * WORKERS, lambda peer: True)


def test_one_announcement_serves_all_that_start_at_one_moment():
    sends = [Send(n, 0, None, ()) for n in range(3)]
    fetches = [Receive(n, 0, None, (), ()) for n in range(3)]
    starts = [task for pair in zip(sends, fetches, strict=True) for task in pair]
    tasks = (*starts, Wait(0), Wait(1), compute("scale", [], []), Wait(2))
    wanted = {1: [4], 5: [2, 3], 7: [1], 10: [5]}
    assert announcements(tasks, wanted, at_once=False) == {5: {2, 3, 4}, 6: {1}, 9: {5}}
    assert announcements(tasks, wanted, at_once=True) == {0: {4}, 4: {2, 3}, 6: {1}, 9: {5}}


def overlap(buffer, other):
    return buffer.offset < other.offset + other.nbytes and other.offset < buffer.offset + buffer.nbytes


def reads_and_overwrites(programs, worker):
    """Yield, worked out pair by pair: a position, and how many tasks a rank must have finished before it."""
    whole = programs[worker]
    sends, all_ends = (
        [
            {task.transfer: n for n, task in enumerate(rank_program.tasks) if isinstance(task, kind)}
            for rank_program in programs
        ]
        for kind in (Send, Wait)
    )
    ends = all_ends[worker]
    targets = {task.transfer: task.buffer for task in whole.tasks if isinstance(task, Receive)}
    for task in whole.tasks:
        if isinstance(task, Receive):
            yield from (
                (ends[task.transfer], m.peer, sends[m.peer][task.transfer] + 1) for m in task.messages if m.nbytes
            )
        if not isinstance(task, Send) or not task.messages:
            continue
        read = whole.buffers[task.buffer]
        for position, later in enumerate(whole.tasks):
            if position <= sends[worker][task.transfer] or isinstance(later, Send | Receive):
                continue
            written = [targets[later.transfer]] if isinstance(later, Wait) else []
            if isinstance(later, Compute):
                written = [buffer for kernel in later.kernels for call in kernel.calls for buffer, _ in call.outputs]
            if any(overlap(read, whole.buffers[number]) for number in written):
                yield from ((position, m.peer, all_ends[m.peer][task.transfer] + 1) for m in task.messages if m.nbytes)


@pytest.mark.parametrize(
    ("model", "ways", "stages"),
    [
        *product(["mlp", "cnn"], [(2,), (3,), (2, 2), (7,), (2, 2, 2)], [()]),
        ("rnn", (2,), ()),
        *product(["mlp", "cnn"], [(2,), (3, 2), (2, 2, 2)], [(0,)]),
    ],
)
def test_all_that_is_needed_is_waited_for_and_nobody_for_ever(model, ways, stages):
    """Ranks that go on in random order, each as far as its waits let it, all come to the end, nothing overtaken."""
    rng = random.Random(f"{model} {ways}")
    plan = random_plan(graph(model, "float32", "sgd"), ways, rng, stages)
    programs = lower(plan, prefetch=rng.choice([0, 1, 2])).workers
    all_positions = [positions(rank_program.tasks) for rank_program in programs]
    all_waits = [waits(rank_program, all_positions, lambda peer: True) for rank_program in programs]
    for worker in range(len(programs)):
        known = list(accumulate(all_waits[worker], lambda before, now: {**before, **now}))
        needs = list(reads_and_overwrites(programs, worker))
        assert all(known[position][rank] >= tasks for position, rank, tasks in needs)
    ends = [len(rank_program.tasks) for rank_program in programs]
    done = [0] * len(programs)
    while done != ends:
        able = [w for w, n in enumerate(done) if n < ends[w] and all(done[r] >= t for r, t in all_waits[w][n].items())]
        assert able
        done[rng.choice(able)] += 1
    assert all(done[r] >= t for waits_of_rank in all_waits for r, t in waits_of_rank[-1].items())


def test_memory_that_two_map():
    block = Block(100)
    other = map_memory(block.address)
    block.bytes[7] = 5
    other[99] = 3
    assert (other[7], block.bytes[99], len(other)) == (5, 3, 100)
    with pytest.raises(OSError, match="found another file"):
        map_memory(replace(block.address, inode=block.address.inode + 1))
    block.close()
    with pytest.raises(OSError, match=r"/proc/"):
        map_memory(block.address)
    assert other[7] == 5


def test_a_program_without_transfers():
    alone = program([Receive(0, 1, None, (), (LocalCopy(0, ()),)), Wait(0)], ("a", (1,), "float32", "tensor"), worker=0)
    assert WORKERS > 1
    assert announcements(alone.tasks, {}, at_once=False) == {}
