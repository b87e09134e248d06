"""The time without communication: every transfer at no cost, its order kept.

A worker then takes the sum of its kernels' times, and waits only for what others have not computed yet. Kernels that
share a resource with those of other workers need the interpreter; otherwise each takes the time that it takes alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from simpy import Environment

from planner.program.tasks import Compute, Program, Send, Wait, WorkerProgram
from simulator.costs import Costs
from simulator.interpreter import Switches, interpret
from simulator.sharing import Sharing
from simulator.transfers import Transfer, transfers
from topologies import Machine


def seconds_without_communication(program: Program, machine: Machine, *, overlap: bool = True) -> float:
    """Return the seconds of one iteration in which packing, latency, messages and unpacking take no time.

    The program must be free of deadlock.
    """
    devices = machine.devices[: len(program.workers)]
    memories = {device.memory for device in devices}
    if len(memories) < len(devices) or any(device.processor is not None for device in devices):
        return interpret(program, machine, Switches(overlap=overlap, communicate=False)).seconds
    return _Quiet(program, machine, overlap).seconds()


class _Quiet:
    """Each worker's own clock; a worker goes on until it waits for a half of a transfer that nobody has started."""

    def __init__(self, program: Program, machine: Machine, overlap: bool) -> None:
        self._workers = program.workers
        self._sharing = Sharing(Environment(), [resource.capacity for resource in machine.resources])
        self._costs = Costs(machine, self._sharing)
        self._overlap = overlap
        self._transfers = transfers(program)
        k = len(program.workers)
        self._clocks_s = [0.0] * k
        self._launched_s = [0.0] * k
        self._sent_s: defaultdict[int, list[float]] = defaultdict(lambda: [np.inf] * k)
        self._wanted_s: defaultdict[int, list[float]] = defaultdict(lambda: [np.inf] * k)
        self._blocked: defaultdict[int, list[int]] = defaultdict(list)

    def seconds(self) -> float:
        """Run every worker to its end."""
        runs = [self._run(worker) for worker in self._workers]
        ready = list(range(len(runs)))
        while ready:
            ready += next(runs[ready.pop()], [])
        return max(self._clocks_s, default=0.0)

    def _run(self, worker: WorkerProgram) -> Iterator[list[int]]:
        """Yield, whenever the worker cannot go on, who may go on."""
        number = worker.worker
        awake: list[int] = []
        for task in worker.tasks:
            if isinstance(task, Compute):
                self._compute(worker, task)
                continue
            transfer = self._transfers.get(task.transfer)
            if transfer is None:
                continue
            if not isinstance(task, Wait) and self._starts(transfer, number, isinstance(task, Send)):
                awake += self._blocked.pop(transfer.number, [])
            if isinstance(task, Wait) or (not self._overlap and not transfer.starters[number]):
                while (complete_s := self._complete_s(transfer, number)) == np.inf:
                    self._blocked[transfer.number].append(number)
                    yield awake
                    awake = []
                self._clocks_s[number] = max(self._clocks_s[number], complete_s)
        yield awake

    def _compute(self, worker: WorkerProgram, task: Compute) -> None:
        number, activity = worker.worker, self._costs.compute(worker, task)
        self._launched_s[number] += activity.host_s
        self._clocks_s[number] += max(0.0, self._launched_s[number] - self._clocks_s[number]) + activity.delay_s
        if activity.work:
            self._clocks_s[number] += activity.work / self._sharing.fastest(activity.number)

    def _starts(self, transfer: Transfer, worker: int, outgoing: bool) -> bool:
        """Start this worker's half of a transfer; without overlap, both with its last."""
        now_s = self._clocks_s[worker]
        if self._overlap:
            (self._sent_s if outgoing else self._wanted_s)[transfer.number][worker] = now_s
            return True
        transfer.starters[worker] -= 1
        if not transfer.starters[worker]:
            self._sent_s[transfer.number][worker] = self._wanted_s[transfer.number][worker] = now_s
        return not transfer.starters[worker]

    def _complete_s(self, transfer: Transfer, worker: int) -> float:
        """Return when the worker's messages are complete, infinite where the other ends of some have not started."""
        sent_s, wanted_s = self._sent_s[transfer.number], self._wanted_s[transfer.number]
        targets, sources = transfer.shape.partners[worker]
        latest_s = 0.0
        if targets:
            latest_s = max(sent_s[worker], *(wanted_s[target] for target in targets))
        if sources:
            latest_s = max(latest_s, wanted_s[worker], *(sent_s[source] for source in sources))
        return latest_s
