"""Real plans, lowered and simulated: bytes, memory, time, the report, the trace and the command."""

import json
import re

import pytest

import planner
from planner.models import build
from planner.plans.plan import single_worker
from planner.program.lower import lower
from planner.program.workspace import needed_bytes
from planner.report.schema import read_reports
from planner.search import SearchOptions, search
from simulator.interpreter import Switches
from simulator.report import plan_program, report
from simulator.simulation import simulated
from tensor_partitioner.commands.simulate import main
from tensor_partitioner.display import STATUS
from tests.launcher import exit_status
from topologies import full_text, load_topology

MODELS = {"mlp-3-64": {}, "cnn-5-8": {"image": 8}, "wresnet-14-1": {"image": 32}, "rnn-2-32": {"unroll": 3}}


def planned(model, ways=(2, 2, 2), **options):
    graph = build(model, batch=16, **options)
    return search(graph, SearchOptions(ways=ways, searcher="recursive"))


@pytest.fixture(scope="module")
def machine():
    return load_topology("p2.8xlarge")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "mlp.json"
    planned("mlp-3-64", (2, 2)).save(path)
    return path


@pytest.mark.parametrize("model", MODELS)
def test_simulated_bytes_are_the_plans_and_the_peak_is_the_arena_with_workspace_and_reserve(model, machine):
    plan = planned(model, **MODELS[model])
    for prefetch in (0, 1, 3):
        simulation = simulated(lower(plan, prefetch=prefetch), machine)
        assert (simulation.timeline.bytes == plan.bytes).all()
        for memory, worker in zip(simulation.memories, simulation.program.workers, strict=True):
            assert memory.peak_bytes == needed_bytes(worker, machine.devices[worker.worker])
        assert simulation.seconds_without_communication <= simulation.seconds
        assert all(link.utilisation <= 1 for link in simulation.links)


def test_a_large_network(machine):
    plan = search(build("wresnet-152-10", batch=8), SearchOptions(ways=(2, 2, 2)))
    assert (simulated(lower(plan), machine).timeline.bytes == plan.bytes).all()


def test_no_overlap_takes_longer(machine):
    program = lower(planned("mlp-3-64"), prefetch=2)
    assert simulated(program, machine, Switches(overlap=False)).seconds > simulated(program, machine).seconds


def test_one_worker_communicates_nothing(machine):
    simulation = simulated(lower(single_worker(planned("mlp-3-64"))), machine)
    assert simulation.seconds == simulation.seconds_without_communication > 0
    assert not simulation.timeline.bytes.any()


def test_a_hierarchy_is_never_faster_than_a_switch(machine):
    program = lower(planned("wresnet-14-1", image=32))
    assert simulated(program, load_topology("uniform-8")).seconds <= simulated(program, machine).seconds * (1 + 1e-6)


def test_report(machine, tmp_path):
    plan = planned("mlp-3-64")
    simulation = simulated(plan_program(plan, machine, 1).program, machine)
    outcome = report(plan, "some.json", simulation, {"prefetch": 1})
    assert (outcome.machine, outcome.plan, outcome.batch, outcome.dtype) == ("p2.8xlarge", "some.json", 16, "float32")
    assert outcome.samples_per_s == pytest.approx(16 / simulation.seconds)
    assert outcome.bytes == outcome.planned_bytes
    assert 0 < outcome.communication_share < 1
    assert len(outcome.links) == 26
    assert sum(link.nbytes for link in outcome.links if link.name.startswith("gpu")) == outcome.total_bytes


def test_command(plan_file, tmp_path, capsys):
    json_file, trace_file = tmp_path / "r.json", tmp_path / "t.json"
    assert (
        exit_status(
            main, [str(plan_file), "--topo", "p2.8xlarge.yaml", "--json", str(json_file), "--trace", str(trace_file)]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "seconds per step" in out
    assert "equal to the plan" in out
    (outcome,) = read_reports(json_file)
    assert outcome.settings == {"prefetch": 1, "overlap": True, "collectives": "pairs"}
    events = json.loads(trace_file.read_text())["traceEvents"]
    received = sum(event["args"]["bytes"] for event in events if "transfer" in event.get("args", ()))
    assert received == outcome.total_bytes


def test_a_plan_that_does_not_fit_is_status_1(plan_file, tmp_path, capsys):
    tiny, written = tmp_path / "tiny.yaml", tmp_path / "r.json"
    without_reserve = re.sub("reserved_bytes: [^,}]*, ", "", full_text("uniform-8"))
    tiny.write_text(re.sub(" memory_bytes: [^,}]*", " memory_bytes: 1e4", without_reserve))
    done = exit_status(main, [str(plan_file), "--topo", str(tiny), "--json", str(written)])
    captured = capsys.readouterr()
    (outcome,) = read_reports(written)
    devices = [device.device for device in outcome.devices if device.verdict == "out of memory"]
    assert done == 1
    assert devices
    doubt, error = captured.err.splitlines()
    assert doubt.startswith(f"warning: {tiny}: $.device_types[0].memory_bytes: expected ")
    assert error == f"error: {plan_file}: out of memory on {', '.join(devices)}"
    assert "out of memory" in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["PLAN", "--topo", "nowhere"], r"error: nowhere: expected a topology file, a name that `topo list`"),
        (["PLAN", "--topo", "uniform-2"], r"error: uniform-2: expected at least 4 devices, one per worker, found 2"),
        (["missing.json", "--topo", "p2.8xlarge"], "error: missing.json: No such file"),
        (["PLAN"], "error: Missing option '--topo'"),
        (["PLAN", "--topo", "p2.8xlarge", "--prefetch", "-1"], "error: Invalid value for '--prefetch'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, plan_file, capsys):
    done = exit_status(main, [str(plan_file) if argument == "PLAN" else argument for argument in arguments])
    captured = capsys.readouterr()
    assert done == 2
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


class Counted:
    def __init__(self):
        self.tasks = []

    def begin(self, task):
        self.tasks.append(task)

    def end(self, task):
        assert task.done == task.total


def test_how_far_a_simulation_is_can_be_observed():
    observer, program = Counted(), lower(planner.plan(build("mlp-2-16", batch=8), 1))
    token = STATUS.set(observer)
    try:
        simulated(program, load_topology("uniform-2"))
    finally:
        STATUS.reset(token)
    tasks = len(program.workers[0].tasks)
    assert [task.total for task in observer.tasks] == [2, tasks, tasks]
