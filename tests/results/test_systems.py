"""Systems against arithmetic, and against a pool of memory blocks written another way."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import planner
from planner.errors import InputError
from planner.graph.facts import batch_size
from planner.models import build
from planner.program.lower import lower
from planner.program.tasks import Compute, Kernel, SlicedCall, Storage, WorkerProgram
from results.lifetimes import holders
from results.wresnet_throughput.systems.flow import flow_of, in_order_of_start, seconds_alone, worker_program
from results.wresnet_throughput.systems.host import with_host_memory
from results.wresnet_throughput.systems.largest_batch import MOST, largest_batch
from results.wresnet_throughput.systems.layers import layers_of
from results.wresnet_throughput.systems.registry import SYSTEMS
from results.wresnet_throughput.systems.spread import spread
from results.wresnet_throughput.systems.swapping import AHEAD, SOON, Cache, room_bytes
from results.wresnet_throughput.systems.system import NoRoomError, SystemRequest
from simulator.interpreter import Switches, interpret
from simulator.simulation import simulated
from tests.cross.loopback import Loopback
from tests.simulator.programs import buffer, peak_live_bytes, star
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


@pytest.mark.parametrize("system", ["ideal", "small-batch", "swapping"])
def test_replicas_take_what_one_device_takes(system, graph, machine):
    deployed = built(system, graph, machine)
    assert seconds(deployed) == pytest.approx(alone(graph, machine), rel=1e-9)
    assert deployed.samples == 4 * batch_size(graph)


def test_data_parallelism_without_communication_is_one_device(machine):
    deployed = built("data-parallel", build("mlp-3-64", batch=64), machine)
    silent = interpret(deployed.program, machine, Switches(communicate=False))
    assert silent.seconds == pytest.approx(alone(build("mlp-3-64", batch=16), machine), rel=1e-6)


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


def test_layers_of_a_recurrent_network():
    graph = build("rnn-3-32", **MODELS["rnn-3-32"])
    layers = layers_of(graph)
    for node in graph.nodes:
        if node.name.startswith(("lstm1", "lstm2", "lstm3")) and node.forward is None and ".h." not in node.name:
            assert layers[node.name] == int(node.name[4]) - 1, node.name
    assert {layers[node.name] for node in graph.nodes if node.name.startswith(("logits", "fc"))} == {3}


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


def least_recently_used(trace, sizes, lasting, room, issued):
    """A second pool: block by block, by the times of last requests; return bytes out and in of the second iteration."""
    last_use = {block: n for n, (read, written) in enumerate(trace) for block in (*read, *written)}
    here, asked_at, saved, clock = {}, {}, set(lasting), 0
    for _ in range(2):
        out = into = 0
        for n, (read, written) in enumerate(trace):
            wanted = list(dict.fromkeys((*read, *written)))
            for block in [b for b in last_use if b not in lasting and last_use[b] < issued[n]]:
                here.pop(block, None)
                saved.discard(block)
            using = {b for r, w in trace[issued[n] : n + 1] for b in (*r, *w)}
            coming = {b for r, w in trace[n + 1 : n + 1 + SOON] for b in (*r, *w)}
            need = sum(sizes[b] for b in wanted if b not in here)
            while sum(sizes[b] for b in here) + need > room:
                victims = [b for b in here if b not in using]
                victim = min(victims, key=lambda b: (b in coming, asked_at[b]))
                out += sizes[victim] if here.pop(victim) else 0
                saved.add(victim)
            for block in wanted:
                clock += 1
                if block not in here:
                    into += sizes[block] if block in saved and block in read else 0
                    here[block] = False
                asked_at[block] = clock
            for block in written:
                here[block] = True
                saved.discard(block)
        for block in [b for b in last_use if b not in lasting]:
            here.pop(block, None)
            saved.discard(block)
    return out, into


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_swapped_bytes_are_those_of_another_pool(graph, share, ahead):
    flow = flow_of(worker_program(graph), layers_of(graph))
    least = max(sum(flow.nbytes[b] for b in {*r, *w}) for r, w in zip(flow.reads, flow.writes, strict=True))
    room = max(least, share * flow.worker.arena_bytes)
    pool = Cache(flow, room, ahead)
    pool.iteration()
    moves = pool.iteration()
    out = sum(flow.nbytes[block] for move in moves for block in move.out)
    into = sum(flow.nbytes[block] for move in moves for block in move.fetched)
    trace = list(zip(flow.reads, flow.writes, strict=True))
    assert (out, into) == least_recently_used(trace, flow.nbytes, flow.persistent, room, pool.issued)
    assert out > 0
    assert pool.most_used <= room
    for position, start in enumerate(pool.issued):
        used = {b for read, written in trace[start : position + 1] for b in (*read, *written)}
        assert start == position or sum(flow.nbytes[b] for b in used) <= ahead * room


@pytest.mark.parametrize("system", [*OWN, "zero-3"])
def test_what_lives_fits_in_every_systems_arenas(system, machine):
    graph = build("mlp-3-64", batch=16)
    small = tight(graph, machine, 0.6) if system == "swapping" else machine
    program = built(system, graph, small).program
    assert system != "swapping" or program.bytes.any()
    for worker in program.workers:
        groups = defaultdict(list)
        for holder, held in zip(holders(worker), worker.buffers, strict=True):
            groups[holder].append(held)
        live = [
            Storage(max(b.nbytes for b in group), min(b.first for b in group), max(b.last for b in group))
            for group in groups.values()
        ]
        assert peak_live_bytes(live) <= worker.arena_bytes


def smaller(machine, nbytes):
    return replace(machine, memories=tuple(replace(memory, nbytes=nbytes) for memory in machine.memories))


def tight(graph, machine, share):
    """The machine with memory for a share of what blocks take."""
    worker = worker_program(graph)
    taken = machine.memories[0].nbytes - room_bytes(worker, machine.devices[0], machine)
    return smaller(machine, int(taken + share * worker.arena_bytes))


def test_swapping_is_held_up_by_the_link_that_all_share(graph, machine):
    small = tight(graph, machine, 0.6)
    deployed = {devices: built("swapping", graph, small, devices) for devices in (1, 8)}
    moved = {devices: deployment.program.bytes[:devices, devices].sum() for devices, deployment in deployed.items()}
    assert min(moved.values()) > 0
    assert seconds(deployed[8]) > max(seconds(deployed[1]), moved[8] / 10e9)
    assert not deployed[8].too_large
    simulation = simulated(deployed[8].program, deployed[8].machine)
    memories = [memory for memory in simulation.memories if max(memory.workers) < 8]
    assert all(sum(memory.by_kind.values()) == memory.peak_bytes <= memory.capacity_bytes for memory in memories)
    assert min(min(memory.by_kind.values()) for memory in memories) >= 0


def test_copies_flow_both_ways_beside_computation(machine):
    """What a step takes is less than computing and copying one after the other, or out and in one after the other."""
    graph = build("mlp-4-1024", batch=256)
    deployed = built("swapping", graph, tight(graph, machine, 0.6), 1)
    timeline = interpret(deployed.program, deployed.machine, Switches(record_messages=True))
    ways = [
        [
            (message.start_s, message.stop_s)
            for message in timeline.messages
            if message.nbytes and getattr(message, end) == 0
        ]
        for end in ("source", "target")
    ]
    out_s, in_s, either_s = (covered(spans) for spans in (*ways, [*ways[0], *ways[1]]))
    assert either_s < out_s + in_s
    assert timeline.seconds < timeline.compute_s[0] + either_s


def covered(spans):
    """How long at least one of these lasts."""
    total = until = 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return total


def test_what_a_task_uses_must_fit(machine):
    graph = build("mlp-3-64", batch=16)
    with pytest.raises(NoRoomError, match="expected room for"):
        built("swapping", graph, tight(graph, machine, 0.01))


def test_the_host_is_reached_through_the_nearest_processor():
    machine = with_host_memory(load_topology("dgx-1-v100"), 8)
    assert {len(machine.route(device, 8).uses) for device in range(8)} == {len(machine.route(0, 8).uses)}


# --- plans


def sharded(stage, workers=4, **options):
    graph = build("mlp-3-64", batch=16, **options)
    return planner.plan(graph, parallel=f"dp={workers},zero={stage}")


def test_stages_move_what_is_said_of_them():
    """Data parallelism and stages 1 and 2 move 2 (k - 1) W; stage 3 gathers W twice, whoever reads it."""
    plain = planner.plan(build("mlp-3-64", batch=16), ways=(4,), searcher="data-parallel")
    layer, others = 64 * 64 * ITEM, 4 - 1
    loss = plain.total_bytes - 2 * others * 3 * layer
    moved = [sharded(stage).total_bytes - loss for stage in (1, 2, 3)]
    assert moved == [others * layer * (3 + 3), others * layer * (3 + 3), others * layer * (3 + 3 + 3)]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_stages_keep_what_is_said_of_them(stage, optimizer):
    plan = sharded(stage, optimizer=optimizer)
    shard = {name for name, layout in plan.layouts.items() if str(layout[0]).startswith("S")}
    graph = plan.graph
    for old, new in graph.updates.items():
        role = graph.tensors[old].role
        if graph.tensors[old].shape:
            assert ({old, new} <= shard) == (role == "state" or stage == 3), old
    gradients = {name: str(plan.layouts[name][0]) for name in graph.tensors if name.endswith(".w.grad")}
    assert set(gradients.values()) == {"S0"}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_stages_train_as_data_parallelism_does(stage, dtype):
    plan = sharded(stage, dtype=dtype)
    shards, expected = (Loopback(version, lower(version)) for version in (plan, planner.plan(plan.graph, workers=1)))
    for _ in range(3):
        shards.step()
        expected.step()
    for weight in plan.graph.updates:
        whole = expected.array(0, expected.program.tensors[weight])
        for worker, region in enumerate(shards.program.regions[weight]):
            part = whole[np.ix_(*(np.concatenate([np.arange(*run) for run in runs]) for runs in region))]
            assert shards.array(worker, shards.program.tensors[weight]) == pytest.approx(part, rel=2e-2, abs=1e-3)
    assert (shards.moved == 3 * plan.bytes).all()


# --- batches


@pytest.mark.parametrize("system", ["small-batch", "zero-2", "op-placement", "planned"])
def test_the_largest_batch_fits_and_twice_as_much_does_not(system, machine):
    small = smaller(machine, machine.devices[0].spec.reserved_bytes + (400 << 10))

    def deploy(batch):
        return built(system, build("mlp-2-64", batch=batch), small)

    batch, largest = largest_batch(deploy)
    assert not largest.too_large
    assert deploy(2 * batch).too_large


def test_no_batch_fits(machine):
    small = smaller(machine, machine.devices[0].spec.reserved_bytes + 1000)
    with pytest.raises(NoRoomError, match="found none"):
        largest_batch(lambda batch: built("small-batch", build("mlp-2-64", batch=batch), small))


def test_a_batch_without_end_is_not_looked_for(machine):
    fitting = built("small-batch", build("mlp-2-64", batch=8), machine)
    with pytest.raises(InputError, match=f"more than {MOST:,} samples fit in memory"):
        largest_batch(lambda _: fitting)
