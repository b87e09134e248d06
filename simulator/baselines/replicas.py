"""*Ideal* and *small-batch* (Tofu, Sec 7.1): every device trains a replica by itself, and nothing is communicated.

Ideal's devices have as much memory as is asked for; small-batch makes do with what there is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.program.tasks import Program
from simulator.baselines.system import Asked, Deployment, on_device, one_worker, samples_of_replicas


def small_batch(asked: Asked) -> Deployment:
    """Run a replica on every device."""
    worker = one_worker(asked.graph)
    replicas = tuple(on_device(worker, number) for number in range(asked.devices))
    silent = np.zeros((asked.devices,) * 2, dtype=np.int64)
    program = Program((asked.devices,), replicas, {}, {}, silent)
    return Deployment(asked.graph, program, asked.machine, samples_of_replicas(asked))


def ideal(asked: Asked) -> Deployment:
    """Run a replica on every device, whatever memory it takes."""
    return replace(small_batch(asked), limited=False)
