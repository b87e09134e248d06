"""What ranks of torchrun measure of their machine, as JSON from rank 0.

torchrun --nproc-per-node 3 -m tests.executor_torch.measured
"""

import json

import numpy as np

from executor.calibration.bench import Bench, hardware_of, timed_collectives
from executor.torch.ranks import job_cluster

MOST_BYTES = 1 << 16

if __name__ == "__main__":
    ranks = job_cluster()
    bench = Bench(ranks, np, "gloo", 1)
    hardware, collectives = hardware_of(bench), timed_collectives(bench, MOST_BYTES)
    if ranks.rank == 0:
        taken = {operation: [taken.small_s, taken.large_s] for operation, taken in collectives.items()}
        print(json.dumps({"messages": hardware.messages_s, "collectives": taken}))
