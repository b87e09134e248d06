"""Collectives as operations of a library in simulated time, against closed forms and against messages between pairs."""

import random
from dataclasses import replace

import numpy as np
import pytest

import simulator
from planner.errors import PlanError
from planner.layout import Collective
from planner.layout.communication import Group
from planner.models import build
from planner.planning import plan
from planner.program.lower import lower
from planner.program.tasks import Send
from simulator.interpreter import DeadlockError, Switches, interpret
from simulator.report import Settings
from simulator.simulation import simulated
from tests.cross.cases import WAYS, graph
from tests.cross.random_plans import random_plan
from tests.simulator.programs import compute, fetch, program, send, star, wait
from tests.topologies.test_collectives import DEVICE
from topologies import load_topology, parse_topology

LIBRARY = Switches(library=True)
LINK = 10  # bytes per second, of every device to the switch and back
PAYLOAD = 40  # bytes


def gathering(kind="all-gather", workers=(0, 1, 2, 3), *, is_half=False, nbytes=PAYLOAD):
    """Tasks by which one of some workers takes part in a collective; in pairs each sends a share to every other."""
    operation = Collective(kind, (0,), (Group(tuple(workers), nbytes // 4),), is_half)

    def tasks(own, transfer=0):
        sizes = {other: nbytes // len(workers) for other in workers if other != own}
        start = (
            replace(send(transfer, sizes), collective=operation),
            replace(fetch(transfer, sizes), collective=operation),
        )
        return [*start, wait(transfer)]

    return tasks


def seconds(*tasks, machine=None, switches=LIBRARY):
    return interpret(program(*tasks), machine or star(len(tasks), link=LINK), switches).seconds


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all-gather", 3 / 4 * PAYLOAD / LINK),
        ("reduce-scatter", 3 / 4 * PAYLOAD / LINK),
        ("all-reduce", 2 * 3 / 4 * PAYLOAD / LINK),
        ("all-to-all", 3 / 4 * PAYLOAD / LINK),
        ("broadcast", PAYLOAD / LINK),
    ],
)
def test_alone_an_operation_takes_what_its_algorithm_does(kind, expected):
    tasks = gathering(kind)
    assert seconds(*map(tasks, range(4))) == pytest.approx(expected)
    slow_start = star(4, link=LINK, latency_s=0.05)  # twice on every route
    shortest = {"all-reduce": 2 * 2, "all-to-all": 1}.get(
        kind, 3
    )  # a tree of four is two deep, and loads links as a ring
    step_s = seconds(*map(tasks, range(4)), machine=slow_start)
    assert step_s == pytest.approx(expected + 0.1 * shortest)


def test_two_halves_take_as_long_as_the_whole():
    first, second = gathering("reduce-scatter", is_half=True), gathering("all-gather", is_half=True)
    halves = [[*first(own, 0), *second(own, 1)] for own in range(4)]
    machine = star(4, link=LINK, latency_s=0.05)
    whole = seconds(*map(gathering("all-reduce"), range(4)), machine=machine)
    assert seconds(*halves, machine=machine) == pytest.approx(whole)


def test_everybody_waits_for_the_last():
    """Three seconds late, and then what an operation takes, for all; pairs that are there go ahead."""
    tasks = gathering()
    late = [[*([compute(300)] * (own == 3)), *tasks(own)] for own in range(4)]
    timeline = interpret(program(*late), star(4, link=LINK), LIBRARY)
    assert [stops[-1] for stops in timeline.stops_s] == pytest.approx([3 + 3] * 4)
    silent = interpret(program(*late), star(4, link=LINK), replace(LIBRARY, communicate=False))
    assert silent.seconds == pytest.approx(3)


def test_who_does_not_come_is_named():
    tasks = gathering()
    with pytest.raises(DeadlockError, match="worker 0 in task 2, Wait of transfer 0; worker 1"):
        interpret(program(*map(tasks, range(3)), []), star(4, link=LINK), LIBRARY)


def test_an_operation_shares_links_with_messages():
    """Worker 0 sends 4 a message as well, over one link that the ring of the others uses.

    Each has half of the link until the message is there; that is when the operation has made as much progress.
    """
    tasks = gathering()
    nbytes = 20
    sender = [send(1, {4: nbytes}), *tasks(0), wait(1)]
    others = [*map(tasks, (1, 2, 3)), [fetch(1, {0: nbytes}), wait(1)]]
    timeline = interpret(program(sender, *others), star(5, link=LINK), LIBRARY)
    share_s, ring = 2 * nbytes / LINK, 3 / 4 * PAYLOAD
    assert timeline.stops_s[4][-1] == pytest.approx(share_s)
    assert timeline.stops_s[1][-1] == pytest.approx(share_s + (ring - nbytes) / LINK)


def test_groups_start_by_themselves():
    """Two groups of one transfer: one late, the other not."""
    operation = Collective("all-gather", (1,), (Group((0, 1), 10), Group((2, 3), 10)))
    tasks = []
    for own in range(4):
        sizes = {own ^ 1: 20}
        start = [replace(send(0, sizes), collective=operation), replace(fetch(0, sizes), collective=operation), wait(0)]
        tasks.append([*([compute(200)] * (own == 3)), *start])
    timeline = interpret(program(*tasks), star(4, link=LINK), LIBRARY)
    assert [stops[-1] for stops in timeline.stops_s] == pytest.approx([2, 2, 4, 4])


def test_what_only_one_end_states_is_waited_for_in_vain():
    """Worker 0 of a group waits for a message of which worker 1 knows nothing."""
    first, (_, second_fetch, second_wait) = gathering(workers=(0, 1))(0), gathering(workers=(0, 1))(1)
    silent = replace(send(0, {}), collective=second_fetch.collective)
    with pytest.raises(DeadlockError, match=r"worker 0 in task 2, Wait of transfer 0$"):
        interpret(program(first, [silent, second_fetch, second_wait]), star(2, link=LINK), LIBRARY)


@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize("model", ["mlp", "rnn"])
def test_workers_get_the_same_bytes_either_way(model, ways):
    """By pair as planned; and what crosses links is what the algorithms send over each link of their routes."""
    drawn = random_plan(graph(model, "float32", "sgd"), ways, random.Random(f"{model} {ways} together"))
    lowered, machine = lower(drawn), star(ways.workers, link=1e6, memory=1e9)
    apart, together = (simulated(lowered, machine, Switches(library=library)) for library in (False, True))
    np.testing.assert_array_equal(apart.timeline.bytes, drawn.bytes)
    np.testing.assert_array_equal(together.timeline.bytes, drawn.bytes)
    for simulation in (apart, together):
        sent = simulation.timeline.wire_bytes.sum(axis=1)
        assert {link.name: link.nbytes for link in simulation.links if link.name.endswith("->s")} == {
            f"d{worker}->s": round(nbytes) for worker, nbytes in enumerate(sent)
        }
    np.testing.assert_array_equal(apart.timeline.wire_bytes, drawn.bytes)
    moving = {task.transfer for task in lowered.workers[0].tasks if isinstance(task, Send) and task.collective}
    assert set(together.timeline.operations) == moving


TWO_NODES = f"""
format: topology/2
name: two-nodes
description: two nodes of four
{DEVICE}
devices: [{{name: node*2/gpu*4, type: d}}]
switches: [{{name: node*2/switch}}]
links:
  - {{ends: [node*2/gpu*4, node*2/switch], bandwidth_bytes_per_s: 100.0e9, direction: each, latency_s: 0}}
  - {{ends: [node0/switch, node1/switch], bandwidth_bytes_per_s: 10.0e9, direction: each, latency_s: 0}}
"""


def test_data_parallelism_on_two_nodes():
    """Of weights W the link between them carries W each way by a hierarchy, 4 W in pairs; as planned in all."""
    model = plan(build("mlp-3-64", batch=16), 8, ways=(8,), searcher="data-parallel")
    weights = sum(t.nbytes for t in model.graph.tensors.values() if t.role == "weight" and t.init is not None)
    crossed = {}
    for collectives in ("pairs", "library"):
        report = simulator.simulate(model, parse_topology(TWO_NODES), collectives=collectives)
        crossed[collectives] = {link.name: link.nbytes for link in report.links}["node0/switch->node1/switch"]
        assert report.total_bytes == model.total_bytes
        assert report.settings["collectives"] == collectives
    assert crossed["pairs"] == pytest.approx(4 * weights, rel=0.01)
    assert crossed["library"] == pytest.approx(weights, rel=0.01)


def test_gpus_have_a_library_and_others_do_not():
    for machine, expected in (("hgx-h100", True), ("p4d-nodes-2", True), ("p2.8xlarge", False), ("uniform-4", False)):
        assert Settings().by_library(load_topology(machine)) == expected
        assert Settings(collectives="pairs").by_library(load_topology(machine)) is False
        assert Settings(collectives="library").by_library(load_topology(machine)) is True
    with pytest.raises(PlanError, match="collectives: expected auto, pairs, library, found 'rings'"):
        Settings(collectives="rings")
