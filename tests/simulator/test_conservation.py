"""What must hold of any program on any machine: bytes, capacities, scaling, and where the time goes."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from simulator.interpreter import Switches, interpret
from simulator.memory import Accounting
from simulator.simulation import simulated
from tests.simulator.programs import INSTANT, changed, compute, fetch, program, send, star, wait
from tests.simulator.test_interpreter import programs
from topologies.schema import Peak

MACHINE = {"link": 7, "memory": 50, "latency_s": 0.01, "launch_s": 0.02}


def slow_hub(devices=4):
    return star(devices, **MACHINE)


def streaming_hub(devices=4):
    """The same, whose messages are packed and combined while they flow, and cost what 5 bytes more would."""
    return changed(slow_hub(devices), streams=True, half_bandwidth_bytes=5)


@settings(deadline=None, max_examples=30)
@given(programs(), st.sampled_from([slow_hub(), streaming_hub()]))
def test_links_carry_what_is_routed_over_them_and_never_more_than_they_can(drawn, machine):
    timeline = interpret(drawn, machine, Switches(record_messages=True))
    crossed = Counter()
    for message in timeline.messages:
        for resource, _ in machine.route(message.source, message.target).uses:
            crossed[machine.resources[resource].name] += message.nbytes
    links = simulated(drawn, machine).links
    assert {link.name: link.nbytes for link in links} == {link.name: crossed[link.name] for link in links}
    moments = sorted({s for m in timeline.messages for s in (m.start_s, m.stop_s)})
    for moment in moments:  # what must cross a link between two moments fits between them
        load = defaultdict(float)
        for message in timeline.messages:
            if message.start_s >= moment:
                for resource, units in machine.route(message.source, message.target).uses:
                    load[resource] += units * message.nbytes
        for resource, units in load.items():
            room = machine.resources[resource].capacity * (timeline.seconds - moment)
            assert units <= room * (1 + 1e-9) + 1e-9


@settings(deadline=None, max_examples=30)
@given(programs(), st.sampled_from([slow_hub(), streaming_hub()]))
def test_twice_the_rates_and_half_the_fixed_times_take_half_the_time(drawn, machine):
    devices = tuple(
        device.changed(
            peak_flop_per_s=Peak(**{name: 2 * peak for name, peak in device.spec.peak_flop_per_s.by_dtype().items()}),
            memory_bandwidth_bytes_per_s=2 * device.spec.memory_bandwidth_bytes_per_s,
            launch_latency_s=device.spec.launch_latency_s / 2,
        )
        for device in machine.devices
    )
    faster = replace(
        machine,
        devices=devices,
        resources=tuple(replace(resource, capacity=2 * resource.capacity) for resource in machine.resources),
        routes={ends: replace(route, latency_s=route.latency_s / 2) for ends, route in machine.routes.items()},
    )
    for overlap in (True, False):
        slow, fast = (simulated(drawn, where, Switches(overlap)) for where in (machine, faster))
        assert fast.seconds == pytest.approx(slow.seconds / 2, rel=1e-9)
        assert fast.seconds_without_communication == pytest.approx(slow.seconds_without_communication / 2, rel=1e-9)


def computing_only(drawn):
    """The program with kernels that touch no memory, so that memory can be made so fast that copies are free."""
    workers = [
        replace(worker, tasks=tuple(replace(t, touched_bytes=0) if hasattr(t, "category") else t for t in worker.tasks))
        for worker in drawn.workers
    ]
    return replace(drawn, workers=tuple(workers))


@settings(deadline=None, max_examples=30)
@given(programs(), st.booleans())
def test_free_communication_is_the_time_without_communication(drawn, streams):
    drawn = computing_only(drawn)
    free = changed(star(4, link=INSTANT, memory=INSTANT), streams=streams, half_bandwidth_bytes=5)
    for overlap in (True, False):
        without = simulated(drawn, star(4, link=7, memory=50, latency_s=0.01), Switches(overlap))
        assert without.seconds_without_communication == pytest.approx(
            interpret(drawn, free, Switches(overlap=overlap)).seconds, rel=1e-9
        )


@settings(deadline=None, max_examples=30)
@given(programs(), st.sampled_from([slow_hub(), streaming_hub()]))
def test_every_workers_step_is_the_sum_of_what_it_is_spent_on(drawn, machine):
    for overlap in (True, False):
        simulation = simulated(drawn, machine, Switches(overlap))
        for spent, seconds in zip(simulation.breakdown, simulation.timeline.compute_s, strict=True):
            exposed = (spent.copies_s, spent.launches_s, spent.wire_s, spent.latency_s, spent.waiting_s)
            assert spent.compute_s + sum(exposed) == pytest.approx(simulation.seconds, rel=1e-12)
            assert spent.compute_s == pytest.approx(seconds, rel=1e-12)
            assert min(spent.compute_s, *exposed, spent.hidden_s) >= -1e-12


@settings(deadline=None, max_examples=30)
@given(programs())
def test_no_chain_of_tasks_takes_longer_than_the_step(drawn):
    """A worker's tasks follow each other, and a message waits for both its ends; a chain of these is no longer."""
    timeline = interpret(drawn, slow_hub(), Switches(record_messages=True))
    for worker, starts, stops in zip(drawn.workers, timeline.starts_s, timeline.stops_s, strict=True):
        assert all(stop <= start + 1e-12 for stop, start in zip(stops, starts[1:], strict=False))
        at = {}
        for task, start_s, stop_s in zip(worker.tasks, starts, stops, strict=True):
            at[type(task).__name__, getattr(task, "transfer", None)] = start_s, stop_s
        for message in timeline.messages:
            if worker.worker in (message.source, message.target):
                half = "Send" if worker.worker == message.source else "Receive"
                assert message.start_s >= at[half, message.transfer][1] - 1e-12
                assert message.stop_s <= at["Wait", message.transfer][1] + 1e-12
                assert message.stop_s <= timeline.seconds


def test_what_a_worker_waits_for_by_hand():
    # worker 0 computes 0.02 + 1 s, packs 20 bytes (0.02 launch, 40 / 50 copy = 0.8) and is done at its end
    # worker 1 waits from 0: for others until 1.84, then two links' latency 0.02, then 20 bytes at 7 per second
    sender, receiver = [compute(100), send(0, {1: 20}), wait(0)], [fetch(0, {0: 20}), wait(0), compute(100)]
    simulation = simulated(program(sender, receiver), slow_hub(2))
    first, second = simulation.breakdown
    flow = 20 / 7
    assert (second.waiting_s, second.latency_s, second.wire_s) == pytest.approx((1.84, 0.02, flow))
    assert (second.compute_s, second.copies_s, second.launches_s) == pytest.approx((1.02, 0.8, 0.02))
    assert (first.compute_s, first.copies_s, first.launches_s, first.latency_s, first.wire_s) == pytest.approx(
        (1.02, 0.8, 0.02, 0.02, flow)
    )
    assert first.waiting_s == pytest.approx(0.8 + 0.02 + 1.02)  # for the other's end
    assert second.hidden_s == pytest.approx(0)


def test_what_holds_up_each_phase():
    def named(task, name):
        return replace(task, kernels=(replace(task.kernels[0], node=name),))

    tasks = [
        [named(compute(500), "f"), send(0, {1: 70}), wait(0), named(compute(100), "b")],
        [named(compute(100), "f"), fetch(0, {0: 70}), wait(0), named(compute(200), "b"), named(compute(50), "u")],
    ]
    phases = {"f": "forward", "b": "backward", "u": "update"}
    simulation = simulated(program(*tasks), star(2, link=7), accounting=Accounting(phases))
    forward, backward, update = simulation.bottlenecks
    assert (forward.phase, forward.worker, forward.kind, forward.name) == ("forward", 0, "compute", "d0")
    assert (backward.kind, backward.worker) == ("wire", 1)
    assert backward.name in {"d0->s", "s->d1"}
    assert backward.end_s == pytest.approx(5 + 10 + 2)
    assert (update.kind, update.name, update.end_s) == ("compute", "d1", pytest.approx(17.5))
