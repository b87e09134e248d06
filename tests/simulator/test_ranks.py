"""Ranks of a host whose tasks were measured: how they share cores, and what messages cost whom."""

import pytest
from hypothesis import given, settings, strategies as st

from planner.program.tasks import Compute, Kernel, SlicedCall
from simulator.interpreter import Switches, interpret
from simulator.simulation import breakdown
from tests.simulator.programs import fetch, program, send, wait
from topologies import parse_topology

ALONE = SlicedCall((), (), {}, (), None)


def work(name):
    return Compute((Kernel("node", "relu", {"name": name}, (ALONE,)),), "other", 0.0, 0)


def host(ranks, cores, seconds, *, latency_s=0.0, sending="{}", fetching="{}", waiting="wake_s: 0", memories=1):
    """A host of so many ranks, on which `work(name)` takes what `seconds` says; or as if several, by its memories."""
    tasks = ", ".join(f"'relu(name={name})  -> ': {value}" for name, value in seconds.items())
    return parse_topology(f"""
format: topology/2
name: here
description: ranks
device_types:
  - name: rank
    peak_flop_per_s: {{float32: 1e9}}
    memory_bandwidth_bytes_per_s: 1e9
    efficiency: {{matmul: 1, convolution: 1, reduction: 1, elementwise: 1, other: 1}}
    launch_latency_s: 0
    measured:
      {{date: now, ranks: {ranks}, threads: 1, transport: p2p, rounds: 1, spread: 0, call_s: 0, {waiting},
       memory_alone_bytes_per_s: 1e9, send: {sending}, post: {{}}, fetch: {fetching}, reduce: {{}}, tasks: {{{tasks}}}}}
devices: [{{name: rank*{ranks}, type: rank, processor: cpu, memory: ram*{memories}}}]
processors: [{{name: cpu, cores: {cores}}}]
memories: [{{name: ram*{memories}, memory_bytes: 1e9, memory_bandwidth_bytes_per_s: 1e9}}]
switches: [{{name: host}}]
link_types: [{{name: m, bandwidth_bytes_per_s: 1e9, direction: each, latency_s: {latency_s / 2}}}]
links: [{{ends: [rank*{ranks}, host], type: m}}]
""")


def test_ranks_up_to_the_cores_take_what_was_measured():
    timeline = interpret(program([work("a")], [work("b")]), host(2, 2, {"a": 3.0, "b": 5.0}))
    assert timeline.stops_s == [[3.0], [5.0]]


def test_three_ranks_on_two_cores_take_turns():
    """All run at 2/3 of a core until the first is done after 3 s; two cores then serve two ranks."""
    machine = host(3, 2, {"a": 2.0, "b": 4.0, "c": 5.0})
    timeline = interpret(program([work("a")], [work("b")], [work("c")]), machine)
    assert [stops[-1] for stops in timeline.stops_s] == pytest.approx([3.0, 5.0, 6.0])


def test_a_rank_that_waits_uses_no_core():
    """Of three ranks on one core two compute; the third waits for the first, then computes alone."""
    machine = host(3, 1, {"a": 1.0, "b": 1.0, "c": 4.0})
    timeline = interpret(
        program(
            [work("a"), send(0, {2: 8}), fetch(0), wait(0)],
            [work("b")],
            [send(0), fetch(0, {0: 8}), wait(0), work("c")],
        ),
        machine,
    )
    assert timeline.stops_s[0][0] == timeline.stops_s[1][0] == pytest.approx(2.0)
    assert timeline.seconds == pytest.approx(6.0)


def test_what_a_message_costs_whom():
    """Sending takes 1 s, the way 0.5 s, receiving 2 s and 0.25 s a byte, after the wait for both."""
    machine = host(2, 2, {}, latency_s=0.5, sending="{task_s: 1}", fetching="{task_s: 2, byte_s: 0.25}")
    tasks = [send(0, {1: 8}), fetch(0), wait(0)], [send(0), fetch(0, {0: 8}), wait(0)]
    timeline = interpret(program(*tasks), machine)
    assert timeline.stops_s[0] == pytest.approx([1.0, 1.0, 1.5])
    assert timeline.stops_s[1] == pytest.approx([0.0, 0.0, 1.5 + 4.0])
    assert timeline.bytes.tolist() == [[0, 8], [0, 0]]
    assert timeline.blocked[1][0].end_s - timeline.blocked[1][0].begin_s == pytest.approx(1.5)


def test_a_message_between_memories_crosses_links():
    """As above, but 8 bytes at 1e9 bytes a second are on their way besides."""
    machine = host(2, 2, {}, latency_s=0.5, sending="{task_s: 1}", fetching="{task_s: 2, byte_s: 0.25}", memories=2)
    tasks = [send(0, {1: 8}), fetch(0), wait(0)], [send(0), fetch(0, {0: 8}), wait(0)]
    timeline = interpret(program(*tasks), machine)
    assert timeline.stops_s[1][-1] == pytest.approx(1.5 + 8e-9 + 4.0, abs=1e-12)


def test_waiting_takes_its_share_of_a_core():
    """Of 3 s that the second rank waits a fifth is work, and a tenth of a second more; then it goes on."""
    machine = host(2, 2, {"a": 3.0, "b": 1.0}, waiting="wake_s: 0.1, waiting_share: 0.2")
    tasks = [work("a"), send(0, {1: 8}), fetch(0), wait(0)], [send(0), fetch(0, {0: 8}), wait(0), work("b")]
    timeline = interpret(program(*tasks), machine)
    assert timeline.stops_s[1] == pytest.approx([0.0, 0.0, 3.7, 4.7])
    assert timeline.blocked[1][0].end_s == pytest.approx(3.7)
    spent = breakdown(program(*tasks), machine, timeline)[1]
    assert (spent.wire_s, spent.hidden_s, spent.waiting_s) == (0.0, 0.0, pytest.approx(3.7))


def test_without_communication_only_kernels_take_time():
    machine = host(2, 2, {"a": 3.0}, latency_s=0.5, sending="{task_s: 1}", fetching="{task_s: 2}")
    tasks = [send(0, {1: 8}), fetch(0), wait(0), work("a")], [send(0), fetch(0, {0: 8}), wait(0), work("a")]
    assert interpret(program(*tasks), machine, Switches(communicate=False)).seconds == pytest.approx(3.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0.01, 10.0), max_size=4), min_size=1, max_size=6), st.integers(1, 4))
def test_no_work_is_lost_and_none_done_faster_than_the_cores_can(lists, cores):
    """Without messages cores are idle only when fewer ranks than cores have work left."""
    seconds = {f"t{rank}_{at}": value for rank, own in enumerate(lists) for at, value in enumerate(own)}
    tasks = [[work(f"t{rank}_{at}") for at in range(len(own))] for rank, own in enumerate(lists)]
    timeline = interpret(program(*tasks), host(len(lists), cores, seconds))
    totals = [sum(own) for own in lists]
    least = max(sum(totals) / cores, *totals)
    assert timeline.seconds >= least * (1 - 1e-9)
    assert timeline.seconds <= sum(totals) / cores + max(totals) + 1e-9
    for stops, total in zip(timeline.stops_s, totals, strict=True):
        assert not stops or stops[-1] >= total * (1 - 1e-9)
    ends = sorted((stops[-1] if stops else 0.0 for stops in timeline.stops_s), reverse=True)
    done = 0.0
    for left, (later, earlier) in enumerate(zip(ends, [*ends[1:], 0.0], strict=True), start=1):
        done += (later - earlier) * min(left, cores)
    assert done == pytest.approx(sum(totals))
