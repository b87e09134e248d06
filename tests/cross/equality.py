"""What plans leave behind under every transport: mpirun -n K python -m tests.cross.equality PLAN...

Every plan is trained for some steps in every way of `RUNS` (cells.py), ranks pausing at random moments. Rank 0
prints, as JSON, of every plan the bytes planned, and of every run the bytes sent and a digest of what all ranks store.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from executor.arena import Action
from executor.cluster import Cluster
from executor.data import Random
from executor.mpi import job_cluster
from executor.process.launch import job_main
from executor.training import RankPrograms, Trainer, rank_programs
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.program.lower import arena_sizes
from tests.cross.cells import RUNS, STEPS

PAUSES, LONGEST_PAUSE_S = 8, 2e-3


class Apart(MPI.Intracomm):
    """A communicator that takes every second rank for one of another host."""

    def Split_type(self, *_: object, **__: object) -> MPI.Intracomm:
        """Return those that are taken to share this rank's host."""
        return MPI.Intracomm(self.Split(self.Get_rank() % 2))


AMONG = {"together": MPI.Intracomm, "apart": Apart}


def pauses(tasks: int, seed: object) -> Iterator[tuple[int, Action]]:
    """Yield random moments for a rank to pause, so that others run ahead of it, and for how long."""
    drawn = random.Random(repr(seed))
    for _ in range(PAUSES):
        yield drawn.randrange(tasks), partial(time.sleep, drawn.uniform(0, LONGEST_PAUSE_S))


def digest(trainer: Trainer, plan: Plan) -> str:
    """Return a digest of what a rank stores for the next iteration, and of its metrics."""
    names = {*plan.graph.updates, *plan.graph.metrics.values()} & {*trainer.programs.training.tensors}
    checksum = hashlib.sha256()
    for name in sorted(names):
        checksum.update(trainer.host_copy(name).tobytes())
    return checksum.hexdigest()


def trained(plan: Plan, ranks: Cluster, transport: str, mine: RankPrograms, number: int) -> dict[str, Any]:
    """Train a plan, its run of some number; on rank 0, return what came of it."""
    trainer = Trainer(mine, ranks, np, transport)
    data = Random(plan.graph, plan.seed)
    for step in range(STEPS):
        trainer.load(data, step)
        sent = trainer.worker.transport.sent_bytes
        sent.fill(0)
        trainer.worker.run(looks=pauses(len(mine.training.worker.tasks), (ranks.rank, step, number)))
    rows = ranks.gather((sent.tolist(), digest(trainer, plan), trainer.arena.nbytes))
    return {
        "bytes": [row[0] for row in rows],
        "digest": hashlib.sha256("".join(row[1] for row in rows).encode()).hexdigest(),
        "arenas": [row[2] for row in rows],
        "predicted arenas": arena_sizes(plan, RUNS[number][-1]) if rows else (),
    }


def main(ranks: Cluster) -> int:
    """Train every plan in every way."""
    outcomes = []
    with threadpool_limits(1), np.errstate(all="ignore"):
        for path in map(Path, sys.argv[1:]):
            plan = load_plan(path)
            parts = {prefetch: rank_programs(plan, ranks.rank, prefetch) for *_, prefetch in RUNS}
            runs = [
                trained(plan, replace(ranks, comm=AMONG[among](ranks.comm)), transport, parts[prefetch], number)
                for number, (transport, among, prefetch) in enumerate(RUNS)
            ]
            outcomes.append({"plan": path.stem, "planned": plan.bytes.tolist(), "runs": runs})
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    job_main(main, job_cluster())
