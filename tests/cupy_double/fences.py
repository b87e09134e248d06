"""Ranks of `ipc`, one with a device that lags behind: python -m tests.cupy_double.fences LEFT_OUT; rank 0 prints JSON.

LEFT_OUT names a method of the events that does nothing.
"""

import json
import os
import sys

from executor.backend import array_module
from executor.mpi import job_cluster
from executor.process.launch import job_main
from executor.transport.ipc import Events, ipc, ipc_arena
from executor.worker import Worker
from tests.executor.on_ranks import own
from tests.executor.programs import exchange, expected

ITERATIONS = 3
SLOW = 1
DELAYS_S = (1e-4, 0.03)
"""Before each piece of work; that of the slow rank's device, too."""


def run(ranks, left_out):
    os.environ["CUPY_DOUBLE_DELAY"] = str(DELAYS_S[ranks.rank == SLOW])
    cupy = array_module("cupy")
    if left_out:
        setattr(Events, left_out, lambda *_arguments: None)
    program = exchange(ranks.rank, "Sum")
    arena = ipc_arena(cupy, program.arena_bytes, ranks.comm)
    worker = Worker(program, arena, lambda memory: ipc(memory, ranks.comm, crowded=True))
    right = []
    for iteration in range(ITERATIONS):
        worker.memory.views[0][...] = cupy.asarray(own(ranks.rank, iteration))
        worker.run()
        received = worker.memory.views[5].get().tolist()
        right.append(received == expected(own(ranks.rank, iteration), "Sum").tolist())
    gathered = ranks.gather(right)
    print(json.dumps(gathered))
    return 0


if __name__ == "__main__":
    job_main(lambda ranks: run(ranks, "".join(sys.argv[1:])), job_cluster())
