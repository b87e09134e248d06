"""What each task takes and waits for, on programs small enough to work out by hand."""

import pytest
from hypothesis import given, settings, strategies as st

from simulator.interpreter import DeadlockError, Switches, interpret
from simulator.simulation import simulated
from tests.simulator.programs import compute, fetch, program, reduce, send, shared_processor, star, wait
from topologies import TopologyError


def seconds(machine, *tasks, **switches):
    return interpret(program(*tasks), machine, Switches(**switches)).seconds


@pytest.mark.parametrize(
    ("task", "machine", "expected"),
    [
        (compute(200), star(), 2),  # 200 / 100 flop/s
        (compute(200, category="matmul"), star(), 4),  # at half the peak
        (compute(200, 50), star(memory=10), 5),  # 50 / 10 bytes/s binds
        (compute(800, 50), star(memory=10), 8),  # 800 / 100 flop/s binds
        (compute(200, calls=3), star(launch_s=1), 5),  # three launches
        (compute(0), star(), 0),
    ],
)
def test_compute(task, machine, expected):
    assert seconds(machine, [task]) == pytest.approx(expected)


def test_tasks_run_in_order():
    timeline = interpret(program([compute(100), compute(300)]), star())
    assert timeline.starts_s == [pytest.approx([0, 1])]
    assert timeline.stops_s == [pytest.approx([1, 4])]
    assert timeline.compute_s == pytest.approx([4])


def test_the_host_launches_ahead_of_the_device():
    # launched at 1, 2, 3 and 4: the second waits for the device, the third and fourth for the host
    tasks = [compute(300), compute(10), compute(10), compute(10)]
    timeline = interpret(program(tasks), star(host_s=1))
    assert timeline.starts_s == [pytest.approx([0, 4, 4.1, 4.2])]
    assert timeline.stops_s == [pytest.approx([4, 4.1, 4.2, 4.3])]
    short = interpret(program([compute(10), compute(10), compute(10)]), star(host_s=1))
    assert short.stops_s == [pytest.approx([1.1, 2.1, 3.1])]


def test_a_step_takes_the_later_of_the_device_and_the_host():
    for seconds_each, host_s, expected in ((2, 1, 1 + 5 * 2), (0.5, 1, 5 * 1 + 0.5), (0.5, 0, 5 * 0.5)):
        tasks = [compute(100 * seconds_each)] * 5
        assert seconds(star(host_s=host_s), tasks) == pytest.approx(expected)


def test_a_task_of_several_calls_starts_when_all_are_launched():
    assert seconds(star(host_s=1), [compute(600, calls=3)]) == pytest.approx(3 + 6)
    # the gap between kernels is the device's, beside the host's launches
    assert seconds(star(host_s=1, launch_s=0.5), [compute(600, calls=3)]) == pytest.approx(3 + 1.5 + 6)


def test_waiting_for_a_message_does_not_hold_up_the_host():
    tasks = [send(0), fetch(0, {1: 20}), wait(0), compute(100)], [send(0, {0: 20}), fetch(0), wait(0), compute(100)]
    # the message takes 2 s; packing is launched at 1, unpacking and computing have been by the time it is there
    timeline = interpret(program(*tasks), star(host_s=1))
    assert timeline.stops_s[0] == pytest.approx([0, 0, 3, 4])
    assert timeline.stops_s[1] == pytest.approx([1, 1, 3, 4])


@pytest.mark.parametrize(("latency_s", "end_s"), [(0, 5), (0.5, 6)])
def test_a_message_sent_early_flows_once_it_is_wanted(latency_s, end_s):
    # worker 1 wants it at 3; 20 bytes at 10 bytes/s; two links' latency
    tasks = [send(0, {1: 20}), fetch(0), wait(0)], [send(0), compute(300), fetch(0, {0: 20}), wait(0)]
    timeline = interpret(program(*tasks), star(latency_s=latency_s), Switches(record_messages=True))
    assert timeline.stops_s[0] == pytest.approx([0, 0, end_s])  # the sender waits for it too
    assert timeline.seconds == pytest.approx(end_s)
    (message,) = timeline.messages
    assert (message.source, message.target, message.nbytes) == (0, 1, 20)
    assert (message.start_s, message.stop_s) == pytest.approx((3, end_s))


SENDER = [send(0, {1: 20}), wait(0)]
EARLY = SENDER, [fetch(0, {0: 20}), compute(200), wait(0), compute(100)]


@pytest.mark.parametrize(
    ("tasks", "machine", "expected"),
    [
        # a message wanted early flows once it is sent
        (([compute(300), *SENDER], [fetch(0, {0: 20}), compute(100), wait(0)]), star(), 5),
        # prefetch hides a transfer behind computation
        (EARLY, star(), 3),
        ((SENDER, [compute(200), fetch(0, {0: 20}), wait(0), compute(100)]), star(), 5),
        # memory 10 bytes/s: pack 20 bytes (read and written) 4 s; the message is read at one end and written at the
        # other, at 10 bytes/s 2 s; unpack 4 s, and 5 local elements of 4 bytes 4 s
        ((SENDER, [fetch(0, {0: 20}, local=5), wait(0)]), star(link=100, memory=10), 4 + 2 + 4 + 4),
        # pack 4 s, message 2 s; fill the 40 bytes of the buffer 4 s; combine 20 received and 20 local bytes, three
        # accesses each, 12 s
        ((SENDER, [reduce(0, {0: 20}, local=5), wait(0)]), star(link=100, memory=10), 4 + 2 + 4 + 12),
        *((([compute(200)],) * ranks, shared_processor(ranks, 2), s) for ranks, s in ((1, 2), (2, 2), (4, 4))),
        # four ranks on four cores, 50 bytes each at 10 bytes/s alone, through a memory of 20 bytes/s
        (([compute(0, 50)],) * 4, shared_processor(4, 4, memory=20), 10),
        # empty messages, and transfers without messages
        (([send(0, {1: 0}), wait(0), send(1), wait(1)], [fetch(0, {0: 0}), wait(0), fetch(1), wait(1)]),
         star(latency_s=1), 2),
    ],
)  # fmt: skip
def test_a_step_by_hand(tasks, machine, expected):
    assert seconds(machine, *tasks) == pytest.approx(expected)


def test_without_overlap_a_transfer_is_over_before_the_next_task():
    assert seconds(star(), *EARLY, overlap=False) == pytest.approx(5)


def test_a_send_does_not_hold_up_the_sender():
    tasks = [send(0, {1: 20}), compute(100), wait(0)], [fetch(0, {0: 20}), wait(0)]
    timeline = interpret(program(*tasks), star())
    assert timeline.starts_s[0] == pytest.approx([0, 0, 1])
    assert timeline.stops_s[0] == pytest.approx([0, 1, 2])


def test_a_wait_is_for_its_own_transfer():
    sender = [send(0, {1: 40}), send(1, {1: 10}), wait(1), wait(0)]
    receiver = [fetch(0, {0: 40}), fetch(1, {0: 10}), wait(1), compute(100), wait(0)]
    timeline = interpret(program(sender, receiver), star())
    # both share the link: transfer 1 ends at 2; by then transfer 0 has 10 of 40, and ends at 5
    assert timeline.stops_s[1] == pytest.approx([0, 0, 2, 3, 5])


def test_without_overlap_messages_start_at_the_later_half_of_a_transfer():
    # each worker both sends and fetches; worker 0's halves are apart, with 1 s of computation between
    first = [send(0, {1: 20}), compute(100), fetch(0, {1: 20}), wait(0)]
    second = [send(0, {0: 20}), fetch(0, {0: 20}), wait(0)]
    assert seconds(star(), first, second) == pytest.approx(3)
    timeline = interpret(program(first, second), star(), Switches(overlap=False))
    assert timeline.stops_s[0] == pytest.approx([0, 1, 3, 3])
    assert timeline.stops_s[1] == pytest.approx([0, 3, 3])


def test_staggered_receivers_share_an_uplink():
    tasks = [
        [send(0, {1: 30, 2: 20}), wait(0)],
        [fetch(0, {0: 30}), wait(0)],
        [compute(200), fetch(0, {0: 20}), wait(0)],
    ]
    timeline = interpret(program(*tasks), star(3))
    # alone until 2 (20 of 30), then at 5 each: the first ends at 4, the second has 10 left: 5
    assert timeline.stops_s[1][-1] == pytest.approx(4)
    assert timeline.stops_s[2][-1] == pytest.approx(5)


def test_a_kernel_and_a_message_share_a_memory():
    # the message, packed by 4, shares worker 1's memory with its kernel: both at 5 bytes/s, the message until 8. The
    # kernel has 40 + 20 of its 100 bytes by then and ends at 12; unpacking takes 4 more
    sender, receiver = [send(0, {1: 20}), wait(0)], [fetch(0, {0: 20}), compute(0, 100), wait(0)]
    timeline = interpret(program(sender, receiver), star(link=100, memory=10))
    assert timeline.stops_s[0] == pytest.approx([4, 8])
    assert timeline.stops_s[1] == pytest.approx([0, 12, 16])


def test_ranks_share_cores_evenly_whatever_they_compute():
    # two ranks on one core: each has half of it, until the smaller one (1 s alone) ends at 2; then 2 s are left
    timeline = interpret(program([compute(100)], [compute(300)]), shared_processor(2, 1))
    assert [stops[-1] for stops in timeline.stops_s] == pytest.approx([2, 4])


def test_without_communication_order_stays():
    tasks = [compute(100), send(0, {1: 20}), wait(0)], [fetch(0, {0: 20}), wait(0), compute(300)]
    timeline = interpret(program(*tasks), star(link=1, memory=10), Switches(communicate=False))
    assert timeline.seconds == pytest.approx(4)
    assert timeline.bytes.tolist() == [[0, 20], [0, 0]]


def test_a_long_chain_of_instants_does_not_recurse():
    n = 3000
    ping = [task for t in range(n) for task in (send(t, {1: 0}), fetch(t), wait(t))]
    pong = [task for t in range(n) for task in (send(t), fetch(t, {0: 0}), wait(t))]
    assert seconds(star(), ping, pong) == 0


def test_deadlock_names_who_waits_for_what():
    tasks = [send(0), fetch(0, {1: 20}), wait(0)], [compute(1)]
    with pytest.raises(DeadlockError, match=r"worker 0 in task 2, Wait of transfer 0$"):
        interpret(program(*tasks), star())


def test_ends_that_disagree_on_a_size():
    with pytest.raises(ValueError, match=r"transfer 0: .*from worker 0 to 1 at both ends, found 20 and 8"):
        interpret(program([send(0, {1: 20})], [fetch(0, {0: 8})]), star())


def test_a_machine_too_small():
    with pytest.raises(TopologyError, match="star: expected at least 3 devices, one per worker, found 2"):
        interpret(program([], [], []), star(2))


@st.composite
def programs(draw):
    """All workers do the same kinds of tasks in one order; each transfer is waited for some computations later."""
    k = draw(st.integers(2, 4))
    tasks = [[] for _ in range(k)]
    waiting = []
    for transfer in range(draw(st.integers(1, 5))):
        sizes = {(u, w): draw(st.integers(0, 40)) for u in range(k) for w in range(k) if u != w and draw(st.booleans())}
        for w in range(k):
            tasks[w].append(send(transfer, {v: n for (u, v), n in sizes.items() if u == w}))
            tasks[w].append(fetch(transfer, {u: n for (u, v), n in sizes.items() if v == w}))
        waiting.append(transfer)
        for w in range(k):
            tasks[w].append(compute(draw(st.integers(0, 300)), draw(st.integers(0, 30))))
        while waiting and draw(st.booleans()):
            done = waiting.pop(0)
            for own in tasks:
                own.append(wait(done))
    for own in tasks:
        own.extend(wait(transfer) for transfer in waiting)
    return program(*tasks)


@settings(deadline=None)
@given(programs())
def test_any_program(drawn):
    machine = star(4, link=7, memory=50, latency_s=0.01)
    simulation = simulated(drawn, machine)
    apart = simulated(drawn, machine, Switches(overlap=False))
    assert (simulation.timeline.bytes == drawn.bytes).all()
    assert (apart.timeline.bytes == drawn.bytes).all()
    # never faster than the busiest link, or than the slowest worker's own computation
    assert all(link.utilisation <= 1 + 1e-9 for link in simulation.links)
    sent, received = drawn.bytes.sum(axis=1), drawn.bytes.sum(axis=0)
    assert simulation.seconds >= max(sent.max(), received.max()) / 7 * (1 - 1e-9)
    assert simulation.seconds_without_communication <= simulation.seconds * (1 + 1e-9)
    assert simulated(drawn, machine).timeline.stops_s == simulation.timeline.stops_s
