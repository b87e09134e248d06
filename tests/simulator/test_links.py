"""What messages cost: their protocol, streaming devices, copy engines; by hand."""

import pytest

from simulator.interpreter import interpret
from tests.simulator.programs import INSTANT, changed, device_type, fetch, program, reduce, send, star, wait
from topologies import parse_topology

HEAD = "format: topology/2\nname: few\ndescription: devices, whose links follow\n"
PAIR = HEAD + device_type(memory_bytes=1000, memory_bandwidth_bytes_per_s=1e9) + "devices: [{name: d*2, type: d}]"


def seconds(machine, *tasks):
    return interpret(program(*tasks), machine).seconds


def one_message(nbytes):
    return [send(0, {1: nbytes}), wait(0)], [fetch(0, {0: nbytes}), wait(0)]


@pytest.mark.parametrize(("nbytes", "expected"), [(20, 4), (60, 8), (0, 0)])
def test_a_message_of_half_the_bandwidth(nbytes, expected):
    # 10 bytes/s; every message that is not empty occupies its links as if it were 20 bytes longer
    assert seconds(changed(star(), half_bandwidth_bytes=20), *one_message(nbytes)) == pytest.approx(expected)


def test_starting_a_message_takes_as_long_on_a_route_as_on_its_costliest_link():
    """500 bytes at 1000 a second are half a second: 5 bytes of the route, whose narrowest link has 10 a second."""
    machine = parse_topology(f"""{PAIR}
switches: [{{name: s}}]
link_types:
  - {{name: fast, bandwidth_bytes_per_s: 1000, direction: each, latency_s: 0, half_bandwidth_bytes: 500}}
  - {{name: slow, bandwidth_bytes_per_s: 10, direction: each, latency_s: 0}}
links: [{{ends: [d0, s], type: fast}}, {{ends: [s, d1], type: slow}}]
""")
    assert machine.route(0, 1).half_bandwidth_bytes == 5
    assert seconds(machine, *one_message(20)) == pytest.approx(2.5)


def test_both_directions_of_a_shared_link():
    """20 bytes each way on 10 bytes a second in all: both messages are of one class, and start at one moment."""
    machine = parse_topology(f"""{PAIR}
links: [{{ends: [d0, d1], bandwidth_bytes_per_s: 10, direction: shared, latency_s: 0}}]
""")
    each = [[send(0, {peer: 20}), fetch(0, {peer: 20}), wait(0)] for peer in (1, 0)]
    assert seconds(machine, *each) == pytest.approx(4.0)


def test_messages_side_by_side_each_cost_their_link():
    tasks = [send(0, {1: 20, 2: 20}), wait(0)], [fetch(0, {0: 20}), wait(0)], [fetch(0, {0: 20}), wait(0)]
    timeline = interpret(program(*tasks), changed(star(3), half_bandwidth_bytes=20))
    assert timeline.seconds == pytest.approx(8)
    assert timeline.bytes.sum() == 40


def test_what_a_streaming_device_still_copies():
    # 20 bytes at 10 bytes/s take 2 s on the wire. Staged, packing and unpacking touch 40 bytes each, at 10 bytes/s
    sender = [send(0, {1: 20}), wait(0)]
    receiver = [fetch(0, {0: 20}, local=5), wait(0)]
    assert seconds(star(memory=10), sender, receiver) == pytest.approx(4 + 2 + 2 * (20 + 20) / 10)
    # streamed, every byte that arrives touches two more in the receiver's memory; then 20 local bytes are copied
    assert seconds(changed(star(memory=10), streams=True), sender, receiver) == pytest.approx(3 * 2 + 2 * 20 / 10)
    assert seconds(changed(star(memory=30), streams=True), sender, receiver) == pytest.approx(2 + 2 * 20 / 30)


def test_a_streaming_device_combines_what_arrives_with_its_own():
    tasks = [send(0, {1: 20}), wait(0)], [reduce(0, {0: 20}, local=5), wait(0)]
    assert seconds(changed(star(memory=10), streams=True), *tasks) == pytest.approx((1 + 3) * 20 / 10)
    assert seconds(changed(star(memory=40), streams=True), *tasks) == pytest.approx(2)
    alone = [reduce(0, local=5), wait(0)]
    assert seconds(changed(star(1, memory=10), streams=True), alone) == pytest.approx(2 * 20 / 10)


def test_streaming_still_launches():
    assert seconds(changed(star(launch_s=1), streams=True), *one_message(20)) == pytest.approx(1 + 2 + 1)


@pytest.mark.parametrize(("engines", "expected"), [(1, 4), (2, 2), (3, 2)])
def test_copy_engines(engines, expected):
    # a message of 20 bytes to each of two others, over links of 10 bytes/s of their own
    text = HEAD + device_type(memory_bytes=1000, memory_bandwidth_bytes_per_s=INSTANT, copy_engines=engines)
    text += "devices: [{name: d*3, type: d}]\nlinks:\n"
    for a, b in ((0, 1), (0, 2), (1, 2)):
        text += f"  - {{ends: [d{a}, d{b}], bandwidth_bytes_per_s: 10, direction: each, latency_s: 0}}\n"
    tasks = [send(0, {1: 20, 2: 20}), wait(0)], [fetch(0, {0: 20}), wait(0)], [fetch(0, {0: 20}), wait(0)]
    assert seconds(parse_topology(text), *tasks) == pytest.approx(expected)
