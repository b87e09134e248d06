"""One measurement in a process of its own: `engine`, `command ...`, `cluster ...` or `project ...`; prints JSON."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from simpy import Environment

import planner
from simulator.fairness import ActivityClass
from simulator.report import Settings, plan_program, simulation_of
from simulator.sharing import Sharing
from topologies import load_topology

MACHINE = "p2.8xlarge"
WORKERS = 8
AT_ONCE = 10_000
CLUSTER_BATCH = 1024
MICRO_BATCHES = 16
"""Of every replica that is projected."""


def engine() -> dict[str, float]:
    """Return flows per second of CPU in waves between all pairs of GPUs, and the seconds of many flows at once."""
    chance = random.Random(0)
    return {
        "equal_per_s": _waves(400, lambda: 1e6),
        "random_per_s": _waves(80, lambda: chance.uniform(1e5, 1e7)),
        "at_once_s": _at_once(AT_ONCE, chance),
    }


def _flows() -> tuple[Environment, Sharing, NDArray[np.intp]]:
    machine, environment = load_topology(MACHINE), Environment()
    sharing = Sharing(environment, [shared_resource.capacity for shared_resource in machine.resources])
    routes = [machine.route(u, w) for u in range(WORKERS) for w in range(WORKERS) if u != w]
    return environment, sharing, np.array([sharing.number(ActivityClass(route.uses)) for route in routes])


def _waves(waves: int, size: Callable[[], float]) -> float:
    """Start a wave when the one before it is over; return flows per second."""
    environment, sharing, numbers = _flows()

    def flow() -> Iterator[object]:
        for _ in range(waves):
            over, left = environment.event(), [len(numbers)]

            def ended(slots: NDArray[np.intp], over: object = over, left: list[int] = left) -> None:
                left[0] -= len(slots)
                if not left[0]:
                    over.succeed()  # type: ignore[attr-defined]

            sharing.start_many(numbers, np.array([size() for _ in numbers]), ended)
            yield over

    environment.process(flow())  # type: ignore[arg-type]
    started = time.process_time()
    environment.run()
    return waves * len(numbers) / (time.process_time() - started)


def _at_once(count: int, chance: random.Random) -> float:
    environment, sharing, numbers = _flows()
    started = time.process_time()
    for _ in range(count):
        sharing.start(int(chance.choice(numbers)), chance.uniform(1e5, 1e7), lambda: None)
    environment.run()
    return time.process_time() - started


def command(model: str, batch: str, ways: str) -> dict[str, float]:
    """Return seconds of CPU and memory of the command `simulate` on a plan of the recursion under `S`."""
    with tempfile.TemporaryDirectory() as folder:
        plan, report = str(Path(folder) / "plan.json"), str(Path(folder) / "report.json")
        workers = prod(map(int, ways.split(",")))
        machine = MACHINE if workers <= WORKERS else f"uniform-{workers}"
        options = ["--batch", batch, "--ways", ways, "--placements", "S", "-o", plan]
        _run("plan", model, *options)
        return _taken("simulate", plan, "--topo", machine, "--json", report)


def project(replicas: str) -> dict[str, float]:
    """Return seconds of CPU and memory of the command `simulate` on GPT-3 in so many replicas of 8 x 8 H100s."""
    batch, parallel = str(MICRO_BATCHES * int(replicas)), f"tp=8,pp=8,dp={replicas},micro-batch=1,recompute=full"
    machine = f"hgx-h100-nodes-{8 * int(replicas)}"
    return _taken("simulate", "gpt-3-175b", "--batch", batch, "--parallel", parallel, "--topo", machine)


def _taken(name: str, *arguments: str) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status = _run(name, *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu_s, "memory_bytes": after.ru_maxrss * 1024, "fits": status == 0}


def cluster(nodes: str, how: str) -> dict[str, float]:
    """Return what lowering and simulating a plan takes for nodes of 8 GPUs: one worker of each `class`, or `each`.

    The plan, transformer-12-1024 by the recursion under `S,R`, is searched before.
    """
    machine, workers = load_topology(f"hgx-h100-nodes-{nodes}"), WORKERS * int(nodes)
    plan = planner.plan(planner.model("transformer-12-1024", batch=CLUSTER_BATCH), workers=workers)
    searched_bytes, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    simulation = simulation_of(plan_program(plan, machine, 1), Settings(), each_worker=how == "each")
    return {
        "cpu_s": time.process_time() - started,
        "memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "searched_bytes": 1024 * searched_bytes,
        "classes": len(simulation.program.workers),
        "seconds": simulation.seconds,
    }


MEASUREMENTS: Mapping[str, Callable[..., dict[str, float]]] = {
    "engine": engine,
    "command": command,
    "cluster": cluster,
    "project": project,
}


def _run(name: str, *arguments: str) -> int:
    code = f"from tensor_partitioner.commands import entry; entry.{name}()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, check=False)
    if done.returncode > 1:  # 1: does not fit in memory
        raise RuntimeError(f"{name} {' '.join(arguments)}: expected status 0 or 1, found {done.returncode}")
    return done.returncode


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(json.dumps(MEASUREMENTS[what](*arguments)))
