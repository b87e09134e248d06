"""Systems against arithmetic, and against a pool of memory blocks written another way."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

import planner
from planner.models import build
from planner.program.lower import lower
from planner.program.tasks import Compute, Kernel, SlicedCall, WorkerProgram
from results.wresnet_throughput.systems.flow import flow_of, in_order_of_start, seconds_alone
from results.wresnet_throughput.systems.largest_batch import largest_batch
from results.wresnet_throughput.systems.registry import SYSTEMS
from results.wresnet_throughput.systems.spread import spread
from results.wresnet_throughput.systems.system import SystemRequest
from simulator.interpreter import interpret
from tests.simulator.programs import buffer, star
from topologies import load_topology

ITEM = 4
MODELS = {
    "mlp-3-64": {"batch": 16},
    "rnn-3-32": {"batch": 8, "unroll": 4, "input_width": 16, "classes": 8},
    "wresnet-14-0.25": {"batch": 4, "image": 32},
    "transformer-2-64": {"batch": 4, "sequence": 16, "vocabulary": 32},
}

OWN = ("ideal", "small-batch", "swapping", "op-placement")
CASES = [(system, model) for system in SYSTEMS for model in MODELS if system in OWN or model == "mlp-3-64"]
"""Other systems are plans, which are tested elsewhere."""


@pytest.fixture(scope="module")
def machine():
    return load_topology("p2.8xlarge")


@pytest.fixture(scope="module", params=MODELS)
def graph(request):
    return build(request.param, **MODELS[request.param])


def built(system, graph, machine, devices=4):
    return SYSTEMS[system].program(SystemRequest(graph, machine, devices))


def seconds(deployment):
    return interpret(deployment.program, deployment.machine).seconds


def alone(graph, machine):
    program = lower(planner.plan(graph, workers=1))
    return interpret(program, machine).seconds


# --- one device


@pytest.mark.parametrize(("system", "model"), CASES)
def test_on_one_device_every_system_takes_what_a_device_takes(system, model, machine):
    """Swapping has room for everything; op-placement orders kernels anew, on which the lead of a host depends."""
    if system == "op-placement":
        machine = replace(machine, devices=tuple(device.changed(host_launch_s=0.0) for device in machine.devices))
    graph = build(model, **MODELS[model])
    deployed = built(system, graph, machine, 1)
    assert seconds(deployed) == pytest.approx(alone(graph, machine), rel=1e-9)
    assert not deployed.program.bytes.any()


@pytest.mark.parametrize(("system", "model"), CASES)
def test_bytes_are_those_of_the_program(system, model, machine):
    graph = build(model, **MODELS[model])
    deployed = built(system, graph, machine)
    timeline = interpret(deployed.program, deployed.machine)
    assert (timeline.bytes == deployed.program.bytes).all()
    assert timeline.seconds > 0


# --- placement


def test_every_task_is_done_once_and_no_device_does_more_than_one_would(graph):
    """On devices without launches, which overlap what is before them."""
    machine = star(4)
    deployed = built("op-placement", graph, machine)
    done = Counter(
        node for w in deployed.program.workers for t in w.tasks if isinstance(t, Compute) for node in t.nodes
    )
    (worker,) = lower(planner.plan(graph, workers=1)).workers
    assert done == Counter(node for t in worker.tasks if isinstance(t, Compute) for node in t.nodes)
    timeline = interpret(deployed.program, machine)
    assert sum(timeline.compute_s) == pytest.approx(alone(graph, machine), rel=1e-6)
    assert max(timeline.compute_s) <= timeline.seconds
    assert max(w.arena_bytes for w in deployed.program.workers) <= worker.arena_bytes


def grid_program(layers, steps, seconds):
    """A layer's step needs the layer's step before, and the same step of the layer before."""
    tasks, buffers = [], []

    def number(layer, step):
        return layer * steps + step

    for step, layer in product(range(steps), range(layers)):
        read = [number(layer - 1, step)] * (layer > 0) + [number(layer, step - 1)] * (step > 0)
        tasks.append(task(f"{layer}.{step}", read, number(layer, step), seconds))
    buffers = [buffer(str(n), ITEM, 0, len(tasks) - 1, offset=64 * n) for n in range(layers * steps)]
    return WorkerProgram(0, tuple(tasks), tuple(buffers), 0)


def task(name, read, written, seconds):
    """A task of so many seconds on the devices of `star`."""
    call = SlicedCall(tuple((n, ()) for n in read), ((written, ()),), {}, (), None)
    return Compute((Kernel(name, "op", {}, (call,)),), "other", 100 * seconds, 0)


@pytest.mark.parametrize(("layers", "steps"), [(1, 5), (3, 4), (4, 20)])
def test_timesteps_of_placed_layers_are_pipelined(layers, steps):
    """With a device for each layer and messages that take no time: a wavefront."""
    machine = star(layers, link=1e30)
    worker = grid_program(layers, steps, 2.0)
    names = {t.nodes[0]: int(t.nodes[0].split(".")[0]) for t in worker.tasks}
    flow = flow_of(worker, names)
    device_of = [names[t.nodes[0]] for t in worker.tasks]
    order = in_order_of_start(flow.after, device_of, seconds_alone(worker, machine))
    placed = spread(flow, device_of, order, layers)
    assert interpret(placed, machine).seconds == pytest.approx((layers + steps - 1) * 2.0)


# --- swapping


def smaller(machine, nbytes):
    return replace(machine, memories=tuple(replace(memory, nbytes=nbytes) for memory in machine.memories))


# --- plans


# --- batches


@pytest.mark.parametrize("system", ["small-batch", "zero-2", "op-placement", "planned"])
def test_the_largest_batch_fits_and_twice_as_much_does_not(system, machine):
    small = smaller(machine, machine.devices[0].spec.reserved_bytes + (400 << 10))

    def deploy(batch):
        return built(system, build("mlp-2-64", batch=batch), small)

    batch, largest = largest_batch(deploy)
    assert not largest.too_large
    assert deploy(2 * batch).too_large
