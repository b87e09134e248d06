"""Time a training step of a model by one side, in a process of its own; print what is measured as JSON.

Arguments behind a run's: the model, and a side: `arrays` or `torch`, whose kernels the executor runs, `graph`, the same
as `torch` launched as a CUDA graph, or `eager` or `compiled`, PyTorch alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from executor.backend import allow_tf32, array_module
from executor.cluster import single_rank
from executor.data import Random
from executor.training import RankPrograms, Trainer, rank_programs
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from results.gpu.clocks import Clock, cupy_clock, host_clock, torch_clock
from results.gpu.predictions import kinds, most_first
from results.gpu.settings import LIBRARIES, Run, this_run

WARM_UP, LEAST, MOST = 3, 3, 50
"""Steps before those that count, whose losses are compared; and how many count."""

LONGEST, NAME = 30, 160
"""Kernels of a step that are told, and letters of their names."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """Who trains: a step, whose loss it returns once that is asked for, a clock, and what else can be measured."""

    step: Callable[[], Callable[[], float]]
    clock: Clock
    measure: Mapping[str, Callable[[], object]]


def of_executor(programs: RankPrograms, library: str, xp: ModuleType, *, graphs: bool = False) -> Side:
    """Return the executor's step, with a library's kernels; with `graphs` the third and later ones are a graph's."""
    plan, cluster = programs.plan, replace(single_rank(os.cpu_count() or 1), library=library)
    trainer = Trainer(programs, cluster, xp, "p2p")
    trainer.load(Random(plan.graph, plan.seed), 0)
    clock, name = cupy_clock(xp) if xp.__name__ == "cupy" else host_clock(), plan.graph.metrics["loss"]

    numbers = count(1)

    def step() -> Callable[[], float]:
        if next(numbers) == WARM_UP and graphs:
            trainer.worker.capture()
        trainer.run()
        return lambda: float(trainer.view(name).sum())

    parts: dict[str, Callable[[], object]] = {} if graphs else {"parts": lambda: by_task(trainer, clock)}
    sizes = {"arena_bytes": lambda: trainer.arena.nbytes, "outside_arena": lambda: dict(trainer.worker.outside_arena)}
    return Side(step, clock, parts | sizes)


def of_torch(plan: Plan, xp: ModuleType, *, compiles: bool) -> Side:
    """Return PyTorch's own step."""
    torch = import_module("torch")
    train = import_module("results.gpu.eager").step(plan, xp, compiles=compiles)

    def step() -> Callable[[], float]:
        loss = train()
        return lambda: float(loss)

    return Side(step, torch_clock(torch) if xp.__name__ == "cupy" else host_clock(), {})


def by_task(trainer: Trainer, clock: Clock) -> Mapping[str, Mapping[str, float]]:
    """Run a step with a mark between any two tasks; return its seconds by class of kernel, and by operator."""
    tasks, marks = trainer.worker.program.tasks, list[Any]()
    trainer.worker.run(looks=[(place, lambda: marks.append(clock.mark())) for place in range(len(tasks) + 1)])
    classes, operators = defaultdict[str, float](float), defaultdict[str, float](float)
    for task, seconds in zip(tasks, clock.seconds(marks), strict=True):
        category, operator = kinds(task)
        classes[category] += seconds
        operators[operator] += seconds
    return {"classes": most_first(classes), "operators": most_first(operators)}


def timed(side: Side, budget_s: float) -> Row:
    """Time steps, each between two marks; return the median, and what they take of the host."""
    marks, host, started = [side.clock.mark()], list[float](), time.perf_counter()
    while len(host) < LEAST or (len(host) < MOST and time.perf_counter() - started < budget_s):
        begun = time.perf_counter()
        side.step()
        host.append(time.perf_counter() - begun)
        marks.append(side.clock.mark())
    seconds = side.clock.seconds(marks)
    return {"seconds": statistics.median(seconds), "host_seconds": statistics.median(host), "steps": len(seconds)}


def traced(side: Side) -> Row:
    """Count what a step does on the device, kernels, copies and fills, and tell the `LONGEST` kernels.

    Of each the name, how often it runs, and its seconds in all. Nothing where PyTorch sees no device.
    """
    torch = import_module("torch")
    if not torch.cuda.is_available():
        return {"launches": {}}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        side.step()
        side.clock.wait()
    counts, times, seconds = Counter[str](), Counter[str](), defaultdict[str, float](float)
    for event in profile.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            kinds = (kind for kind in ("memcpy", "memset") if event.name().lower().startswith(kind))
            counts[next(kinds, "kernels")] += 1
            times[event.name()[:NAME]] += 1
            seconds[event.name()[:NAME]] += event.duration_ns() * 1e-9
    longest = sorted(seconds, key=lambda name: -seconds[name])[:LONGEST]
    return {"launches": dict(counts), "kernels": [(name, times[name], seconds[name]) for name in longest]}


def memory(xp: ModuleType) -> Mapping[str, int]:
    """Return the bytes that this process takes: on a device those of its allocators, and of all on the card."""
    if xp.__name__ == "numpy":
        return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    free, total = xp.cuda.runtime.memGetInfo()
    reserved = sys.modules["torch"].cuda.max_memory_reserved() if "torch" in sys.modules else 0
    return {"card": total - free, "cupy": xp.get_default_memory_pool().total_bytes(), "torch": reserved}


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Let one process at a time measure; others prepare meanwhile."""
    with (work / "device.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def measured(run: Run, make: Callable[[], Side], xp: ModuleType, *, compiles: bool) -> Iterator[Row]:
    """Yield what is measured, the most important first; what compiles runs its first step beside others."""
    with ExitStack() as stack:
        if not compiles:
            stack.enter_context(alone(run.work))
        started = time.perf_counter()
        side = make()
        losses = [side.step()()]
        yield {"first_seconds": time.perf_counter() - started}
        if compiles:
            stack.enter_context(alone(run.work))
        losses += [side.step()() for _ in range(WARM_UP - 1)]
        yield {"losses": losses}
        yield timed(side, run.scale.step_s)
        yield {"memory": memory(xp)}
        for name, measure in side.measure.items():
            yield {name: measure()}
        if run.on_gpu and "torch" in LIBRARIES:
            yield traced(side)


def main() -> int:
    """Print rows of one model and one side, each as soon as it is known."""
    run, (model, name) = this_run()
    xp, plan = array_module(run.backend), load_plan(run.plan(model))
    if name != "arrays":
        import_module("executor.torch")
    allow_tf32(xp, allowed=False)
    single_rank(1).use_device(xp)
    compiles = name == "compiled"
    if name in ("arrays", "torch", "graph"):
        library = "arrays" if name == "arrays" else "torch"
        make = partial(of_executor, rank_programs(plan, 0), library, xp, graphs=name == "graph")
    else:
        make = partial(of_torch, plan, xp, compiles=compiles)
    for row in measured(run, make, xp, compiles=compiles):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
