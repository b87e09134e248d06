"""Ranks of which one has a device that lags behind: python -m tests.cupy_double.fences TRANSPORT LEFT_OUT; prints JSON.

LEFT_OUT names what does nothing: a method of the events of `ipc`, or `chain`, by which streams wait for each other.
"""

import json
import os
import sys

from executor.backend import array_module
from executor.mpi import TRANSPORTS, job_cluster
from executor.process.launch import job_main
from executor.transport import gpus, messages
from executor.transport.gpus import Events
from executor.worker import Worker
from tests.executor.on_ranks import own
from tests.executor.programs import exchange, expected

ITERATIONS = 3
SLOW = 1
DELAYS_S = (1e-4, 0.03)
"""Before each piece of work; that of the slow rank's device, too."""

OWNERS = {"ipc": Events, "nccl": gpus, "p2p": messages}


def run(ranks, transport, left_out):
    os.environ["CUPY_DOUBLE_DELAY"] = str(DELAYS_S[ranks.rank == SLOW])
    cupy = array_module("cupy")
    if left_out:
        setattr(OWNERS[transport], left_out, lambda *_arguments: None)
    ranks.use_device(cupy)
    program, spec = exchange(ranks.rank, "Sum"), TRANSPORTS[transport]
    arena = spec.arena(cupy, program.arena_bytes, ranks.comm)
    worker = Worker(program, arena, lambda memory: spec.transport(memory, ranks.comm, True))
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
    job_main(lambda ranks: run(ranks, sys.argv[1], "".join(sys.argv[2:])), job_cluster())
