"""*Ideal* and *small-batch* (Tofu, Sec 7.1): every device trains a replica by itself, and nothing is communicated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.program.tasks import Program
from results.wresnet_throughput.systems.flow import worker_program
from results.wresnet_throughput.systems.system import SystemProgram, SystemRequest


def small_batch(request: SystemRequest) -> SystemProgram:
    """Run a replica on every device."""
    worker = worker_program(request.graph)
    replicas = tuple(replace(worker, worker=number) for number in range(request.devices))
    silent = np.zeros((request.devices,) * 2, dtype=np.int64)
    program = Program((request.devices,), replicas, {}, {}, silent)
    return SystemProgram(program, request.machine, request.samples_of_replicas)


def ideal(request: SystemRequest) -> SystemProgram:
    """Run a replica on every device, whatever memory it takes."""
    return replace(small_batch(request), limited=False)
