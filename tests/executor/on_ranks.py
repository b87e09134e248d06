"""What tests run on several ranks: python -m tests.executor.on_ranks WHAT ARGUMENTS; rank 0 prints JSON."""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

from executor.check import relative_difference
from executor.checkpoint import Checkpoint, Saver
from executor.cluster import single_rank
from executor.data import Random
from executor.mpi import TRANSPORTS, job_cluster
from executor.process.launch import job_main
from executor.schedules import read_schedule
from executor.training import Trainer, rank_programs
from executor.transport import point_to_point, shared
from executor.transport.point_to_point import wait_for
from executor.worker import Worker
from planner.plans.plan import single_worker
from planner.plans.plan_json import load_plan
from planner.program.tasks import Send
from tests.cross.equality import Apart
from tests.executor.programs import EACH, WORKERS, exchange


class Watched(MPI.Intracomm):
    """A communicator that notes, apart from the product's own count, what every send was given."""

    sends: list

    def Isend(self, buf, dest, tag=0):
        data = np.asarray(buf[0])
        assert data.flags.c_contiguous
        assert data.nbytes > 0
        self.sends.append((dest, tag, data.nbytes))
        return super().Isend(buf, dest, tag)


def watched():
    comm = Watched(MPI.COMM_WORLD)
    comm.sends = []
    return comm


def own(worker, iteration):
    return (np.arange(EACH) + 10.0 * worker - 7) * (iteration + 1)


def exchange_worker(rank, transport, comm, crowded, reducer="Sum"):
    """A worker of the exchange."""
    program, spec = exchange(rank, reducer), TRANSPORTS[transport]
    arena = spec.arena(np, program.arena_bytes, comm)
    arena.bytes.fill(0xFF)
    return Worker(program, arena, lambda memory: spec.transport(memory, comm, crowded))


def run_exchange(ranks, transport, among):
    """Every reducer and way of waiting, three iterations each; what is left, and what was sent."""
    point_to_point.CHUNK_BYTES = 5  # messages to other hosts go in pieces
    by_case = {}
    for reducer in ("Sum", "Prod", "Max", "Min"):
        for crowded in (False, True):
            comm = {"all": watched, "apart": lambda: Apart(MPI.COMM_WORLD)}[among]()
            worker = exchange_worker(ranks.rank, transport, comm, crowded, reducer)
            results = []
            for iteration in range(3):
                worker.memory.views[0][...] = own(ranks.rank, iteration)
                worker.run()
                results.append(worker.memory.views[5].tolist())
            sends = comm.sends if among == "all" else None
            gathered = ranks.gather((results, sends, worker.transport.sent_bytes.tolist()))
            by_case[f"{reducer} {wait_for(crowded).__name__}"] = gathered
    print(json.dumps(by_case))
    return 0


LATE = 1
PATIENCE_S = 30


def run_unordered(ranks, left_out):
    """The shared exchange without some of its waits, one rank being late: what each rank is left with.

    Without waiting for what is read, the others read before the late rank has anything; without waiting for readers,
    they overwrite their arenas before it reads.
    """
    keep = {
        "nothing": lambda _: True,
        "reads": lambda t: not isinstance(t, Send),
        "overwrites": lambda t: isinstance(t, Send),
    }
    all_waits = shared.waits
    shared.waits = lambda program, positions, near: [
        {rank: tasks for rank, tasks in finished.items() if keep[left_out](program.tasks[tasks - 1])}
        for finished in all_waits(program, positions, near)
    ]
    worker = exchange_worker(ranks.rank, "shared", ranks.comm, crowded=True)
    worker.memory.views[0][...] = own(ranks.rank, 0)
    others = [rank for rank in range(ranks.size) if rank != LATE]

    def signal_late():
        if ranks.rank != LATE:
            ranks.diagnostics.send(None, LATE)

    def await_others():
        until = time.monotonic() + (PATIENCE_S if left_out != "nothing" else 0.1)
        while ranks.rank == LATE and time.monotonic() < until:
            if all(ranks.diagnostics.Iprobe(other) for other in others):
                break

    first_wait, last_wait = 2, 6
    looks = {"reads": [(0, await_others), (first_wait + 1, signal_late)], "overwrites": [(last_wait, await_others)]}
    worker.run(looks=looks.get(left_out, [(0, await_others), (last_wait, await_others)]))
    result = worker.memory.views[5].tolist()
    worker.memory.arena.bytes.fill(0xFF)
    if left_out == "overwrites":
        signal_late()
    if ranks.rank == LATE and left_out != "nothing":
        for other in others:
            ranks.diagnostics.recv(source=other)
    print(json.dumps(ranks.gather(result)))
    return 0


def run_plans(ranks, *paths):
    """One step of every plan: bytes counted at MPI's door, those the transport counted, those planned."""
    counts = []
    for path in paths:
        plan = load_plan(path)
        comm = watched()
        here = replace(job_cluster(), comm=comm)
        trainer = Trainer(rank_programs(plan, ranks.rank), here, np, "p2p")
        trainer.load(Random(plan.graph, plan.seed), 0)
        _, counted = trainer.run()
        at_the_door = [0] * ranks.size
        for peer, _, nbytes in comm.sends:
            at_the_door[peer] += nbytes
        rows = ranks.gather((at_the_door, counted.tolist()))
        counts.append([[row[0] for row in rows], [row[1] for row in rows], plan.bytes.tolist()])
    print(json.dumps(counts))
    return 0


def trained(plan, ranks, steps, resume=None):
    """A trainer after some steps of a plan, from the start or from a checkpoint."""
    trainer = Trainer(rank_programs(plan, ranks.rank), ranks, np, "p2p", read_schedule("warmup=2,cosine=9"))
    first = 0
    if resume is not None:
        resume.restore(trainer)
        first = resume.manifest.step
    for step in range(first, steps):
        trainer.load(Random(plan.graph, plan.seed), step)
        trainer.run()
    return trainer


def all_updated(trainer):
    return {name: trainer.whole(name) for name in trainer.graph.updates}


def largest_difference(values, expected):
    return max(relative_difference(values[name], expected[name]) for name in expected)


def run_checkpoints(ranks, folder, *paths):
    """Every plan's checkpoint read under the next plan and by one worker, and the one worker's under the first plan.

    Says which tensors differ by a bit as they are read, and how far training then goes apart.
    """
    plans = [load_plan(path) for path in paths]
    single, alone = single_worker(plans[0]), single_rank(1)
    differences = []
    for number, (plan, other) in enumerate(zip(plans, [*plans[1:], plans[0]], strict=True)):
        where = Path(folder) / str(number)
        trainer = trained(plan, ranks, 3)
        Saver(where, trainer, "random", trainer.schedule.text).save(3)
        same = trained(plan, ranks, 5, Checkpoint.of(where, plan))
        again = all_updated(trained(other, ranks, 3, Checkpoint.of(where, other)))
        apart = all_updated(trained(other, ranks, 5, Checkpoint.of(where, other)))
        saved = all_updated(trainer)
        expected, resumed = all_updated(trained(plan, ranks, 5)), all_updated(same)
        if ranks.rank == 0:
            alone_again = all_updated(trained(single, alone, 3, Checkpoint.of(where, single)))
            differing = [n for n in saved if saved[n].tobytes() != again[n].tobytes()]
            differing += [n for n in saved if saved[n].tobytes() != alone_again[n].tobytes()]
            differing += [n for n in saved if expected[n].tobytes() != resumed[n].tobytes()]
            differences.append([differing, largest_difference(apart, expected)])
    where = Path(folder) / "alone"
    if ranks.rank == 0:
        trainer = trained(single, alone, 3)
        Saver(where, trainer, "random", trainer.schedule.text).save(3)
    ranks.barrier()
    spread = all_updated(trained(plans[0], ranks, 3, Checkpoint.of(where, plans[0])))
    if ranks.rank == 0:
        kept = all_updated(trainer)
        differences.append([[n for n in kept if kept[n].tobytes() != spread[n].tobytes()], 0.0])
    print(json.dumps(differences))
    return 0


def fail(ranks, how):
    """Rank 1 fails while the others wait for its message."""
    if ranks.rank == 1:
        time.sleep(0.2)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("this rank\nhas had enough")
    wait_for(ranks.crowded)([ranks.comm.Irecv([np.empty(1), MPI.DOUBLE], 1)])
    return 0


def main():
    what, *arguments = sys.argv[1:]
    modes = {
        "exchange": run_exchange,
        "unordered": run_unordered,
        "plans": run_plans,
        "checkpoints": run_checkpoints,
        "fail": fail,
    }
    ranks = job_cluster()
    assert what not in ("exchange", "unordered") or ranks.size == WORKERS
    job_main(lambda ranks: modes[what](ranks, *arguments), ranks)


if __name__ == "__main__":
    main()
