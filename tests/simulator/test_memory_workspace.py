"""Workspace: the rule against what the executor's kernels allocate, and by hand."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import planner
from executor.kernels import KERNELS, KernelCall
from planner.errors import PlanError
from planner.program import workspace
from planner.program.lower import arena_sizes, lower
from planner.program.tasks import Buffer, Compute, Kernel, SlicedCall, WorkerProgram
from planner.program.workspace import needed_bytes, worker_workspace_bytes
from simulator.simulation import simulated
from tests.simulator.programs import star
from topologies import load_topology

LARGE = 1e12
BATCH, CHANNELS, FILTERS = 6, 8, 10
#         image, taps, stride, dilation, groups
CASES = {
    "stacked shifts": (24, 3, 1, 1, 1),
    "columns per image": (40, 3, 2, 1, 1),
    "columns at once": (8, 3, 2, 1, 1),
    "dilated": (40, 3, 1, 2, 1),
    "columns at once, dense": (10, 3, 1, 1, 1),
    "one tap, many pixels": (24, 1, 1, 1, 1),
    "one tap, few pixels": (8, 1, 1, 1, 1),
    "groups": (40, 3, 2, 1, 2),
}


def one_call(op, case):
    """A worker that convolves once without padding, and its arrays."""
    size, taps, stride, apart, groups = case
    result_size = (size - (taps - 1) * apart - 1) // stride + 1
    image, weight, result = (
        (BATCH, CHANNELS, size, size),
        (FILTERS, CHANNELS // groups, taps, taps),
        (BATCH, FILTERS, result_size, result_size),
    )
    shapes = {
        "convolution": (image, weight, result),
        "convolution_backward_input": (result, weight, image),
        "convolution_backward_weight": (result, image, weight),
    }[op]
    whole = [tuple(slice(None) for _ in shape) for shape in shapes]
    ranges = {"y": (0, result_size), "x": (0, result_size), "dy": (0, taps), "dx": (0, taps), "g": (0, groups)}
    if op == "convolution_backward_input":
        ranges |= {"y": (0, size), "x": (0, size)}
    call = SlicedCall(((0, whole[0]), (1, whole[1])), ((2, whole[2]),), ranges, ((0,) * 4, (0,) * 4), None)
    attributes = {"stride": (stride,) * 2, "padding": (0, 0), "dilation": (apart,) * 2, "groups": groups}
    buffers = [Buffer(f"b{i}", shape, "float32", 0, 0, 0, 0, "tensor") for i, shape in enumerate(shapes)]
    task = Compute((Kernel("node", op, attributes, (call,)),), "convolution", 0.0, 0)
    return WorkerProgram(0, (task,), tuple(buffers), 0), [np.ones(shape, np.float32) for shape in shapes]


def allocated(worker, arrays):
    """The most bytes that a worker's only call allocates at one time."""
    (kernel,) = worker.tasks[0].kernels
    (call,) = kernel.calls
    prepared = KernelCall(np, tuple(arrays[:2]), (arrays[2],), kernel.attributes, call.ranges, call.origins)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    KERNELS[kernel.op](prepared)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("op", ["convolution", "convolution_backward_weight", "convolution_backward_input"])
def test_the_rule_is_what_the_executors_kernels_allocate(op, case):
    worker, arrays = one_call(op, CASES[case])
    said, allocated_bytes = worker_workspace_bytes(worker, LARGE), allocated(worker, arrays)
    size, taps, stride, apart, _ = CASES[case]
    frame = max(size, (arrays[2 if op == "convolution" else 0].shape[2] - 1) * stride + 1 + 2 * (taps - 1) * apart)
    padded_copy = 4 * BATCH * max(CHANNELS, FILTERS) * frame**2
    copies_of_weights = 3 * 4 * CHANNELS * FILTERS * taps**2
    assert said <= allocated_bytes <= said + padded_copy + copies_of_weights + 8192
    assert said > 0 or "one tap" in case


def test_as_many_images_as_fit_and_one_at_the_least():
    worker, _ = one_call("convolution", CASES["columns per image"])
    image = 8 * 9 * 19 * 19 * 4  # channels, taps, windows, bytes
    asked = {0: 1, image: 1, 2 * image - 1: 1, 2 * image: 2, 6 * image: 6, LARGE: 6}
    assert {limit: worker_workspace_bytes(worker, limit) // image for limit in asked} == asked


def test_parts_are_not_small_beside_the_weights(monkeypatch):
    worker, _ = one_call("convolution", CASES["columns at once"])
    image, weights = (8 * 9 + 10) * 9 * 4, 10 * 8 * 9 * 4
    assert worker_workspace_bytes(worker, 1) == 4 * weights // image * image
    assert worker_workspace_bytes(worker, 5 * image) == 5 * image
    monkeypatch.setattr(workspace, "WORKSPACE_BYTES", 2 * image)
    assert worker_workspace_bytes(worker, 1) == 2 * image


def test_a_call_that_is_combined_needs_room_for_its_result():
    buffers = (
        Buffer("x", (10,), "float32", 40, 0, 0, 0, "tensor"),
        Buffer("y", (3, 9), "float64", 216, 64, 0, 0, "tensor"),
    )
    calls = [
        SlicedCall(((0, (slice(None),)),), ((1, (slice(1, 3), slice(None))),), {}, (), way) for way in (None, "Sum")
    ]
    for call, room in zip(calls, (0, 192), strict=True):  # 2 x 9 x 8 = 144 bytes, in multiples of 64
        worker = WorkerProgram(0, (Compute((Kernel("n", "sum", {}, (call,)),), "other", 0.0, 0),), buffers, 320)
        assert worker_workspace_bytes(worker, LARGE) == room


def test_a_worker_needs_its_arena_its_workspace_and_what_is_reserved():
    worker, _ = one_call("convolution", CASES["columns per image"])
    worker = replace(worker, arena_bytes=1000)
    device = star().devices[0].changed(reserved_bytes=50.0, workspace_bytes=0.0)
    assert needed_bytes(worker, device) == 1000 + 8 * 9 * 19 * 19 * 4 + 50


def test_what_must_fit_on_a_machine_is_what_the_simulator_counts():
    graph, machine = planner.model("cnn-5-8", batch=16, image=8), load_topology("p2.8xlarge")
    free = planner.plan(graph, ways=(2, 2))
    counted = max(memory.peak_bytes for memory in simulated(lower(free), machine).memories)
    assert planner.plan(graph, ways=(2, 2), memory=counted, machine=machine).search.memory.arena_bytes <= counted
    arena = max(arena_sizes(free))
    assert arena < machine.devices[0].spec.reserved_bytes < counted - arena
    assert planner.plan(graph, ways=(2, 2), memory=arena).total_bytes == free.total_bytes
    with pytest.raises(PlanError, match=r"no plan fits in"):
        planner.plan(graph, ways=(2, 2), memory=arena, machine=machine)
