"""Memory over time: what lives when, the peak, and the verdict."""

from dataclasses import replace

import pytest

from planner.models import build
from planner.program.workspace import needed_bytes, worker_workspace_bytes
from planner.search import SearchOptions, search
from simulator.memory import Accounting, usage
from simulator.report import Settings, plan_program, simulation_of
from simulator.simulation import simulated
from tests.simulator.programs import buffer, compute, program, shared_processor, star
from topologies import load_topology


def peak(workload, machine):
    (memory, *_) = simulated(workload, machine).memories
    return memory


def test_peak_its_moment_and_the_largest_buffers():
    own = [
        buffer("w", 100, 0, 2, kind="persistent", offset=0),
        buffer("a", 200, 0, 1, offset=100),
        buffer("b", 80, 1, 2, offset=300),
        buffer("c", 120, 2, 2, offset=100),
    ]
    # 1 s: w a = 300; then w a b = 380 until 3 s; then w b c = 300
    workload = program([compute(100), compute(200), compute(300)], buffers={0: own}, arena=380)
    memory = peak(workload, star())
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
    workload = program([compute(100)], [compute(200), compute(100)], buffers={0: first, 1: second}, arena=600)
    machine = shared_processor(3, 3)
    (memory,) = simulated(workload, machine).memories
    assert (memory.device, memory.workers, memory.peak_bytes) == ("dram", (0, 1), 1200)
    assert memory.by_kind == {"persistent": 52, "results": 400, "unused": 748}
    assert memory.peak_at_s == pytest.approx(2)
    assert memory.verdict == "out of memory"  # two arenas of 600 in 1000


def reserving(machine, **figures):
    return replace(machine, devices=tuple(device.changed(**figures) for device in machine.devices))


def test_what_fills_a_memory_by_kind():
    own = [
        buffer("w", 100, 0, 1, kind="persistent", offset=0),
        buffer("v", 104, 0, 1, kind="persistent", offset=128),
        buffer("x", 12, 0, 0, offset=256),
        buffer("w for x", 60, 0, 1, kind="fetch", offset=320),
        buffer("w going out", 8, 0, 1, kind="staging", offset=384),
        buffer("x as computed", 16, 0, 0, kind="partial", offset=448),
        buffer("x reduced", 20, 0, 1, kind="reduce", offset=512),
    ]
    workload = program([compute(1), compute(1)], buffers={0: own}, arena=576)
    machine = reserving(star(), reserved_bytes=99.5)
    rules = Accounting({}, {"w": "weights", "v": "optimizer state", "x": "activations"})
    (memory,) = simulated(workload, machine, accounting=rules).memories
    assert memory.by_kind == {
        "weights": 100,
        "optimizer state": 104,
        "activations": 12,
        "fetches": 60,
        "staging": 8,
        "partials": 36,
        "unused": 256,
        "reserve": 100,
    }
    assert memory.peak_bytes == 676 == sum(memory.by_kind.values())


@pytest.mark.parametrize(("reserved", "verdict"), [(400, "fits"), (401, "out of memory")])
def test_what_is_reserved_counts(reserved, verdict):
    machine = reserving(star(), reserved_bytes=reserved)
    assert simulated(program([compute(100)], buffers={0: []}, arena=600), machine).memories[0].verdict == verdict


def test_memory_over_time():
    own = [
        buffer("w", 100, 0, 2, kind="persistent", offset=0),
        buffer("a", 200, 0, 1, offset=100),
        buffer("b", 200, 1, 2, offset=100),  # in the place of a
        buffer("c", 120, 2, 2, offset=300),
    ]
    workload = program([compute(100), compute(200), compute(300)], buffers={0: own}, arena=420)
    names = {"w": "weights", "a": "activations", "b": "gradients", "c": "activations"}
    assert list(simulated(workload, star(), accounting=Accounting(contents=names)).usage(0).moments()) == [
        (0, {"weights": 100, "activations": 200, "gradients": 0}),
        (pytest.approx(1), {"weights": 100, "activations": 0, "gradients": 200}),
        (pytest.approx(3), {"weights": 100, "activations": 120, "gradients": 200}),
        (pytest.approx(6), {"weights": 100, "activations": 0, "gradients": 0}),
    ]


@pytest.mark.parametrize("machine", ["p2.8xlarge", "uniform-8"])
def test_kinds_of_a_plan_sum_to_what_is_allocated_workspace_and_reserve(machine):
    graph = build("wresnet-14-1", batch=16, image=32)
    plan = search(graph, SearchOptions(ways=(2, 2)))
    simulation = simulation_of(plan_program(plan, load_topology(machine), 1), Settings())
    for memory, worker in zip(simulation.memories, simulation.program.workers, strict=True):
        device = simulation.machine.devices[worker.worker]
        assert sum(memory.by_kind.values()) == memory.peak_bytes
        assert set(memory.by_kind) >= {"inputs", "weights", "optimizer state", "activations", "gradients", "workspace"}
        assert memory.by_kind.get("reserve", 0) == device.spec.reserved_bytes
        assert memory.by_kind["workspace"] == worker_workspace_bytes(worker, device.spec.workspace_bytes)
        assert memory.peak_bytes == needed_bytes(worker, device)
        weights = sum(b.nbytes for b in worker.buffers if b.name in graph.updates and b.name in weights_of(graph))
        assert memory.by_kind["weights"] == weights
        alive = usage(
            simulation.program, simulation.timeline, simulation.classes, memory.workers, simulation.accounting.contents
        )
        most = max(sum(kinds.values()) for _, kinds in alive.moments())
        assert most <= worker.arena_bytes


def weights_of(graph):
    return {name for name, tensor in graph.tensors.items() if tensor.role == "weight"}


def test_memories_that_no_worker_uses_are_left_out():
    assert len(simulated(program([compute(1)]), star(3)).memories) == 1


def test_a_buffer_of_tasks_that_do_not_exist():
    with pytest.raises(ValueError, match="buffer a: expected tasks within 0 to 0, found 0 to 4"):
        peak(program([compute(1)], buffers={0: [buffer("a", 4, 0, 4)]}), star())
