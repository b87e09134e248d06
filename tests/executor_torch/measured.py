"""What ranks of torchrun measure of their machine, as JSON from rank 0.

torchrun --nproc-per-node 3 -m tests.executor_torch.measured
"""

import json

import numpy as np

from executor.calibration.bench import Bench
from executor.calibration.hardware import hardware_of
from executor.torch.ranks import job_cluster

if __name__ == "__main__":
    ranks = job_cluster()
    hardware = hardware_of(Bench(ranks, np, "gloo", 1))
    if ranks.rank == 0:
        print(json.dumps(hardware.messages_s))
