"""A program of one worker spread over several devices: every task on one of them, whole tensors sent between.

What a task reads is sent from where it was made as soon as it was, and once to every device that reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.program.tasks import (
    Buffer,
    Message,
    Program,
    Receive,
    Send,
    Storage,
    Task,
    Wait,
    WorkerProgram,
    plan_arena,
)
from results.wresnet_throughput.systems.flow import PERSISTENT, Flow, next_transfer

Version = tuple[int, int | None]  # a block, and the task that made what is in it


@dataclass(slots=True)
class _SpreadDevice:
    """A device's tasks so far, and from which to which of them it holds each block."""

    tasks: list[Task] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def do(self, task: Task, blocks: Sequence[int]) -> None:
        """Add a task that uses some blocks."""
        for block in blocks:
            self.first.setdefault(block, len(self.tasks))
            self.last[block] = len(self.tasks)
        self.tasks.append(task)


class _Spreading:
    def __init__(self, flow: Flow, device_of: Sequence[int], devices: int) -> None:
        self._flow, self._device_of = flow, device_of
        self._devices = [_SpreadDevice() for _ in range(devices)]
        self.bytes = np.zeros((devices, devices), dtype=np.int64)
        self._sent: defaultdict[int | None, list[tuple[int, int, int, int]]] = defaultdict(list)
        self._needs: list[list[tuple[int, int]]] = [[] for _ in device_of]  # per task: transfer and block
        self._absent = tuple(
            replace(buffer, nbytes=0, offset=0, first=0, last=0, kind="tensor") for buffer in flow.worker.buffers
        )
        self._number_transfers()

    def _home(self, version: Version) -> int | None:
        """Return the device that has a version first; None for what is never written, which all have."""
        block, maker = version
        maker = self._flow.rewritten.get(block) if maker is None else maker
        return None if maker is None else self._device_of[maker]

    def _number_transfers(self) -> None:
        numbers: dict[tuple[Version, int], int] = {}
        first = next_transfer(self._flow.worker)
        for position, versions in enumerate(self._flow.made_by):
            target = self._device_of[position]
            for version in versions.items():
                home, nbytes = self._home(version), self._flow.nbytes[version[0]]
                if home in (None, target) or (version[1] is None and version[0] not in self._flow.persistent):
                    continue
                key = version, target
                if key not in numbers:
                    numbers[key] = first + len(numbers)
                    self._sent[version[1]].append((numbers[key], version[0], home or 0, target))
                    self.bytes[home, target] += nbytes
                self._needs[position].append((numbers[key], version[0]))

    def run(self, order: Sequence[int]) -> None:
        """Do the tasks in this order, each on its device, and what has to be sent for them."""
        self._send(None)
        waited: set[int] = set()
        for position in order:
            device = self._devices[self._device_of[position]]
            for number, block in self._needs[position]:
                if number not in waited:
                    waited.add(number)
                    device.do(Wait(number), [block])
            blocks = [*self._flow.reads[position], *self._flow.writes[position]]
            device.do(self._flow.worker.tasks[position], blocks)
            self._send(position)

    def _send(self, maker: int | None) -> None:
        for number, block, source, target in self._sent[maker]:
            nbytes = self._flow.nbytes[block]
            self._devices[source].do(Send(number, block, None, (Message(target, (), nbytes, 0),)), [block])
            self._devices[target].do(Receive(number, block, None, (Message(source, (), nbytes, 0),), ()), [block])

    def workers(self) -> Iterator[WorkerProgram]:
        """Yield every device's program, its blocks placed."""
        for number, device in enumerate(self._devices):
            buffers, size = self._placed(number, device)
            yield WorkerProgram(number, tuple(device.tasks), buffers if device.tasks else (), size)

    def _placed(self, number: int, device: _SpreadDevice) -> tuple[tuple[Buffer, ...], int]:
        flow, end = self._flow, len(device.tasks) - 1
        kept = [
            block for block in device.first if block in flow.persistent and self._home((block, None)) in (None, number)
        ]
        here = set(kept)
        others = [block for block in device.first if block not in here]
        fixed, free, size = plan_arena(
            [Storage(flow.nbytes[block], 0, end) for block in kept],
            [Storage(flow.nbytes[block], device.first[block], device.last[block]) for block in others],
        )
        spans = {block: (0, end, at, PERSISTENT) for block, at in zip(kept, fixed, strict=True)}
        spans |= {b: (device.first[b], device.last[b], at, "tensor") for b, at in zip(others, free, strict=True)}
        buffers = list(self._absent)  # what is not here, or lies in another's block, keeps its shape and takes no bytes
        for block, (first, last, offset, kind) in spans.items():
            nbytes = flow.nbytes[block]
            buffers[block] = replace(buffers[block], nbytes=nbytes, offset=offset, first=first, last=last, kind=kind)
        return tuple(buffers), size


def spread(flow: Flow, device_of: Sequence[int], order: Sequence[int], devices: int) -> Program:
    """Return the program in which the task at every position runs on a device, in an order that dependencies allow."""
    spreading = _Spreading(flow, device_of, devices)
    spreading.run(order)
    return Program((devices,), tuple(spreading.workers()), {}, {}, spreading.bytes)
