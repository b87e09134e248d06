"""A simulation's trace, read by code that shares nothing with its writer, says what the simulation says."""

import importlib.util
import shutil
from collections import defaultdict
from itertools import pairwise

import pytest

from planner.models import build
from planner.program.lower import lower
from planner.program.tasks import Compute
from planner.search import SearchOptions, search
from simulator.interpreter import Switches
from simulator.report import trace
from simulator.simulation import simulated
from tests.simulator.trace_reader import Complete, Trace
from topologies import load_topology

CASES = {
    "mlp": ("mlp-3-64", {}, True),
    "mlp without overlap": ("mlp-3-64", {}, False),
    "rnn": ("rnn-2-32", {"unroll": 3}, True),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    model, options, overlap = CASES[request.param]
    plan = search(build(model, batch=16, **options), SearchOptions(ways=(2, 2, 2)))
    simulation = simulated(lower(plan), load_topology("p2.8xlarge"), Switches(overlap, record_messages=True))
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    trace(simulation).write(path)
    return simulation, path


@pytest.fixture(scope="module")
def simulation(case):
    return case[0]


@pytest.fixture(scope="module")
def read(case):
    return Trace(case[1])


def test_every_device_is_busy_for_as_long_as_simulated(simulation, read):
    kernels = sum(isinstance(task, Compute) for task in simulation.program.workers[0].tasks)
    busy = read.busy_ns("compute")
    for worker, seconds in enumerate(simulation.timeline.compute_s):
        assert abs(busy[worker] - seconds * 1e9) <= kernels
    last = max(end for spans in read.tracks().values() for _, end, _ in spans)
    assert abs(last - simulation.seconds * 1e9) <= 1


def test_a_worker_is_always_drawn_doing_one_thing(simulation, read):
    """Kernels, copies and waiting fill a worker's time, up to its end, without overlap."""
    for worker, stops in enumerate(simulation.timeline.stops_s):
        drawn = sum(read.busy_ns(thread)[worker] for thread in ("compute", "copies", "waiting"))
        assert abs(drawn - stops[-1] * 1e9) <= len(stops)
        spans = sorted(
            span[:2]
            for (pid, tid), intervals in read.tracks().items()
            if pid == worker and tid < 3
            for span in intervals
        )
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_nothing_overlaps_on_its_track(read):
    assert read.tracks()
    for spans in read.tracks().values():
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_links_carry_what_was_simulated(simulation, read):
    """The counters integrate to the bytes of every link, and the messages' own account of their links is the same."""
    counted, counters = defaultdict(int), read.counters("links")
    for event in read.of(Complete):
        for link in event.args.get("links", ()):
            counted[link] += event.args["bytes"]
    assert counters.keys() == {link.name for link in simulation.links}
    assert any(link.nbytes for link in simulation.links)
    for link in simulation.links:
        assert counted[link.name] == link.nbytes
        values = counters[link.name]
        assert values[-1][1] == 0
        carried = sum(rate * (until - since) * 1e-6 for (since, rate), (until, _) in pairwise(values))
        fastest = max(rate for _, rate in values)
        assert carried == pytest.approx(link.nbytes, abs=1e-9 * fastest * len(values) + 1e-6)


def test_memory_peaks_as_simulated(simulation, read):
    for memory in simulation.memories:
        (worker,) = memory.workers
        values = read.counters(f"worker {worker}: gpu{worker}")["memory"]
        assert max(value for _, value in values) <= memory.peak_bytes
        buffers = simulation.program.workers[worker].buffers
        assert values[-1][1] == sum(buffer.nbytes for buffer in buffers if buffer.kind == "persistent")


def test_both_ends_of_every_flow_are_the_messages(simulation, read):
    drawn, recorded = [], []
    names = {task.transfer for task in simulation.program.workers[0].tasks if hasattr(task, "transfer")}
    for (start, (_, packed, pack)), (end, (unpacks, _, unpack)) in read.flows():
        assert read.threads[start.pid, start.tid] == read.threads[end.pid, end.tid] == "copies"
        assert pack.name == f"pack {start.name}"
        assert unpack.name in (f"unpack {start.name}", f"combine {start.name}")
        assert packed <= unpacks
        drawn.append((start.pid, end.pid, start.name))
    for event in read.of(Complete):
        if "transfer" in event.args:
            assert event.name == f"{event.name.rsplit(' from ')[0]} from {event.args['from']}"
            assert event.pid == event.args["to"]
            assert event.args["transfer"] in names
            recorded.append((event.args["from"], event.args["to"], event.name.rsplit(" from ")[0]))
    assert sorted(drawn) == sorted(recorded)
    moved = [
        (message.source, message.target, message.transfer, message.nbytes) for message in simulation.timeline.messages
    ]
    events = [event.args for event in read.of(Complete) if "transfer" in event.args]
    assert sorted((event["from"], event["to"], event["transfer"], event["bytes"]) for event in events) == sorted(moved)


def test_tracks_are_in_a_fixed_order(simulation, read):
    workers = len(simulation.program.workers)
    assert [read.processes[pid].partition(":")[0] for pid in sorted(read.processes)] == [
        *(f"worker {worker}" for worker in range(workers)),
        "links",
    ]
    for worker in range(workers):
        order = [name for (pid, _), name in sorted(read.threads.items()) if pid == worker]
        assert order[:3] == ["compute", "copies", "waiting"]
        assert order[3:] == [f"receive {lane}" for lane in range(len(order) - 3)]


def test_perfetto_says_the_same(case, simulation):
    """The trace processor is asked by SQL for what the other tests read."""
    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if shell is None or importlib.util.find_spec("perfetto") is None:
        pytest.skip("Perfetto's trace processor is not installed")
    perfetto = importlib.import_module("perfetto.trace_processor")
    config = perfetto.TraceProcessorConfig(bin_path=shell)
    with perfetto.TraceProcessor(trace=str(case[1]), config=config) as processor:
        busy = processor.query(
            "select process.upid, sum(dur) as busy from slice join thread_track on slice.track_id = thread_track.id "
            "join thread using (utid) join process using (upid) where thread.name = 'compute' "
            "group by process.upid order by process.pid"
        )
        for row, seconds in zip(busy, simulation.timeline.compute_s, strict=True):
            assert row.busy == pytest.approx(seconds * 1e9, abs=len(simulation.program.workers[0].tasks))
        (flows,) = (row.count for row in processor.query("select count(*) as count from flow"))
        assert flows == len(simulation.timeline.messages)
