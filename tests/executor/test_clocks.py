"""Tasks are timed by the host's clock, or by events of a device that lags behind: here the double of CuPy."""

from dataclasses import replace

import numpy as np
import pytest

import planner
from executor.arena import Arena
from executor.backend import EventClock, HostClock, elapsed_s
from executor.cluster import single_rank
from executor.data import DATA_SETS
from executor.job import Job, JobRequest
from executor.kernels import LIBRARIES
from executor.training import rank_programs
from executor.transport.messages import Messages
from executor.worker import Worker
from planner.report.schema import read_reports
from tests import cupy_double
from tests.executor.programs import compute, program

DELAY_S = 5e-4
"""What the device takes for an event, as for any other piece of work."""


def mlp(workers):
    return planner.plan(planner.model("mlp-2-16", batch=8), workers=workers)


def test_seconds_between_moments_of_a_host():
    clock = HostClock(iter([3.0, 3.25]).__next__)
    assert elapsed_s(clock, lambda: None) == 0.25


def test_seconds_between_events(cupy):
    clock = EventClock(cupy)
    moments = [clock.read() for _ in range(3)]
    first, *others = clock.seconds(moments)
    assert first == 0
    assert others == sorted(others)
    assert elapsed_s(clock, lambda: None) >= 0


REFUSED = {
    "before it is recorded": (lambda cuda: cuda.Event(), "InvalidResourceHandle"),
    "of an event without time": (lambda cuda: recorded(cuda, disable_timing=True), "InvalidResourceHandle"),
}


def recorded(cuda, **options):
    event = cuda.Event(**options)
    event.record()
    return event


@pytest.mark.parametrize("what", REFUSED)
def test_the_double_refuses_what_cuda_does(cupy, what):
    make, message = REFUSED[what]
    with pytest.raises(RuntimeError, match=message):
        cupy.cuda.get_elapsed_time(recorded(cupy.cuda), make(cupy.cuda))


class Numbered:
    """A device's clock by which every task takes one second."""

    is_device = True

    def __init__(self):
        self._count = 0

    def read(self):
        self._count += 1
        return self._count

    def seconds(self, moments):
        return list(map(float, moments))


class Waiting(Messages):
    """Messages of which some task waited, on the host, from and to moments that are given."""

    def __init__(self, memory, waited):
        super().__init__(memory, 1)
        self._waited = waited

    def ordered(self, position, action):
        return (lambda: self.waits.append(self._waited)) if position == 1 else action


@pytest.mark.parametrize(
    ("begin", "end", "kept"),
    [(-9, -8, (1, 1)), (-9, 1.25, (1, 1.25)), (1.25, 1.5, (1.25, 1.5)), (1.5, 9, (1.5, 2)), (-9, 9, (1, 2))],
)
def test_a_device_waits_once_it_is_as_far_as_the_host(monkeypatch, begin, end, kept):
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    task = compute("relu", [(0, (slice(None),))], [(1, (slice(None),))])
    tasks = program([task] * 3, ("a", (4,), "float32", "persistent"), ("b", (4,), "float32", "tensor"))
    waited = 100.0 + begin, 100.0 + end
    worker = Worker(tasks, Arena(np, tasks.arena_bytes), lambda memory: Waiting(memory, waited))
    assert worker.run(Numbered()) == [100.0, 101.0, 102.0, 103.0]
    assert worker.transport.waits == [(100.0 + kept[0], 100.0 + kept[1])]


def test_tasks_that_one_action_does_share_its_time_by_their_bytes():
    def both(first, second):
        np.maximum(first.inputs[0], 0, out=first.outputs[0])
        second.outputs[0][...] = first.outputs[0]

    tasks = [replace(compute("relu", [(0, (slice(None),))], [(n, (slice(None),))]), touched_bytes=n) for n in (1, 3)]
    names = ("a", "b", "c", "d")
    alike = program(tasks, *((name, (4,), "float32", "persistent") for name in names))
    kernels = replace(LIBRARIES["arrays"], at_once={("relu", "relu"): both})
    arena = Arena(np, alike.arena_bytes)
    worker = Worker(alike, arena, lambda memory: Messages(memory, 1), kernels=kernels)
    start, between, stop = worker.run(Numbered())
    assert (between - start, stop - start) == pytest.approx((2 / 4, 2))
    assert np.array_equal(worker.memory.views[1], worker.memory.views[3])


@pytest.mark.parametrize(("options", "steps_timed"), [({}, 0), ({"tasks": True}, 1), ({"trace": True}, 1)])
def test_only_the_last_step_records_events_and_only_for_tasks_or_a_trace(cupy, monkeypatch, options, steps_timed):
    events, plan = [], mlp(1)
    event = cupy.cuda.Event
    monkeypatch.setattr(cupy.cuda, "Event", lambda *given, **named: events.append(named) or event(*given, **named))
    programs, data = rank_programs(plan, 0), DATA_SETS["random"](plan.graph, plan.seed)
    request = JobRequest(steps=2, xp=cupy, transport="p2p", data=data, **options)
    result = Job(programs, single_rank(1), request).run(lambda: None)
    tasks = len(programs.training.worker.tasks)
    assert len(events) == steps_timed * (tasks + 1)
    (rank,) = result.ranks
    assert sum(task.seconds for task in rank.tasks) == pytest.approx(rank.seconds[-1] if "tasks" in options else 0)


@pytest.mark.mpi
@pytest.mark.parametrize("transport", ["p2p", "ipc", "nccl"])
def test_tasks_take_as_long_as_the_device_works(ranks, tmp_path, transport):
    plan, written = tmp_path / "plan.json", tmp_path / "run.json"
    mlp(2).save(plan)
    options = ("--backend", "cupy", "--transport", transport, "--tasks", "--json", written)
    late = {"PYTHONPATH": str(cupy_double.PACKAGE), "CUPY_DOUBLE_DELAY": str(DELAY_S), "CUPY_DOUBLE_DEVICES": "2"}
    ranks.succeed(2, "-m", "tensor_partitioner", "execute", plan, *options, environment=late)
    (report,) = read_reports(written)
    totals = [0.0, 0.0]
    computed = [0.0, 0.0]
    for task in report.tasks:
        totals[task.worker] += task.seconds
        if task.kind == "compute":
            computed[task.worker] += task.seconds
            assert task.seconds >= DELAY_S  # the host, which does not wait, queues a task in less
    assert computed == pytest.approx(report.compute_seconds)
    assert max(totals) == pytest.approx(report.seconds_per_step)
