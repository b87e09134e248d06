"""One measurement in a process of its own: `engine`, or `command MODEL BATCH WAYS`; prints JSON."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from simpy import Environment

from simulator.fairness import ActivityClass
from simulator.sharing import Sharing
from topologies import load_topology

MACHINE = "p2.8xlarge"
WORKERS = 8
AT_ONCE = 10_000


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
    sharing = Sharing(environment, [one.capacity for one in machine.resources])
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
        plan, machine = Path(folder) / "plan.json", _machine(Path(folder), ways)
        options = ["--batch", batch, "--ways", ways, "--placements", "S", "-o", str(plan)]
        _run("plan", model, *options)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = _run("simulate", str(plan), "--topo", machine, "--json", str(Path(folder) / "report.json"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "memory_bytes": after.ru_maxrss * 1024,
        "fits": status == 0,
    }


def _machine(folder: Path, ways: str) -> str:
    """Return p2.8xlarge for 8 workers, and for more as many of its GPUs on one switch."""
    workers = int(np.prod([int(way) for way in ways.split(",")]))
    if workers <= WORKERS:
        return MACHINE
    described = yaml.safe_load((files("topologies") / "uniform-8.yaml").read_text())
    described["name"] = f"uniform-{workers}"
    for kind, name in (("devices", "name"), ("links", "ends")):
        first = described[kind][0]
        described[kind] = [
            {**first, name: f"gpu{number}" if name == "name" else [f"gpu{number}", first["ends"][1]]}
            for number in range(workers)
        ]
    path = folder / "machine.yaml"
    path.write_text(yaml.safe_dump(described))
    return str(path)


def _run(name: str, *arguments: str) -> int:
    code = f"import console_scripts; console_scripts.{name}()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, check=False)
    if done.returncode > 1:  # 1: does not fit in memory
        raise RuntimeError(f"{name} {' '.join(arguments)}: expected status 0 or 1, found {done.returncode}")
    return done.returncode


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(json.dumps(engine() if what == "engine" else command(*arguments)))
