"""CPU time of ranks: mpirun -n K python -m results.transports.cpu PLAN STEPS; rank 0 prints JSON.

The transports take turns, a step each. Seconds are those of all ranks together, the median step's: `total`, and of it
`kernels`, `waiting`, and `moving` (what is left: packing, sending, copying, adding up, and Python's own).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import ParamSpec, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from executor.cluster import Cluster
from executor.data import Random
from executor.mpi import job_cluster
from executor.process.launch import job_main
from executor.progress import Progress
from executor.training import Trainer, rank_programs
from executor.transport import point_to_point
from planner.plans.plan_json import load_plan
from planner.program.tasks import Compute

P = ParamSpec("P")
T = TypeVar("T")

TRANSPORTS = ("p2p", "shared")
WARM_UP = 2


class Stopwatch:
    """This thread's CPU seconds inside functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, timed."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started

        return timed


WAITING = Stopwatch()


def watch_waiting() -> None:
    """Time what transports wait with."""
    wait_for = point_to_point.wait_for
    point_to_point.wait_for = lambda crowded: WAITING.around(wait_for(crowded))
    Progress.wait = WAITING.around(Progress.wait)  # type: ignore[method-assign]


def step(trainer: Trainer) -> dict[str, float]:
    """Run a step; return CPU seconds."""
    tasks = trainer.programs.training.worker.tasks
    moments: list[tuple[float, float]] = []

    def look() -> None:
        moments.append((time.thread_time(), WAITING.seconds))

    WAITING.seconds, started, wall = 0.0, time.process_time(), time.perf_counter()
    trainer.worker.run(looks=((n, look) for n in range(len(tasks))))
    total, wall = time.process_time() - started, time.perf_counter() - wall
    look()
    computing = [n for n, task in enumerate(tasks) if isinstance(task, Compute)]
    waited = sum(moments[n + 1][1] - moments[n][1] for n in computing)  # a kernel may wait before it overwrites
    kernels = sum(moments[n + 1][0] - moments[n][0] for n in computing) - waited
    moving = total - kernels - WAITING.seconds
    return {"total": total, "kernels": kernels, "waiting": WAITING.seconds, "moving": moving, "wall": wall}


def main(ranks: Cluster) -> int:
    """Measure every transport."""
    plan, steps = load_plan(Path(sys.argv[1])), int(sys.argv[2])
    watch_waiting()
    mine, data = rank_programs(plan, ranks.rank), Random(plan.graph, plan.seed)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in TRANSPORTS}
    with threadpool_limits(1), np.errstate(all="ignore"):
        trainers = {name: Trainer(mine, ranks, np, name) for name in TRANSPORTS}
        for _ in range(WARM_UP + steps):
            for name, trainer in trainers.items():
                trainer.load(data, 0)
                ranks.barrier()
                rows = ranks.gather(step(trainer))
                measured[name].append({kind: sum(row[kind] for row in rows) for kind in rows[0]} if rows else {})
    if ranks.rank == 0:
        print(json.dumps({name: _medians(rows[WARM_UP:]) for name, rows in measured.items()}))
    return 0


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {kind: round(median(row[kind] for row in rows), 4) for kind in rows[0]}


if __name__ == "__main__":
    job_main(main, job_cluster())
