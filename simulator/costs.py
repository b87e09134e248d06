"""What a task costs on its device: an activity for kernels, copies and messages.

Kernels and copies progress in bytes at their device's memory bandwidth, messages in bytes. So a kernel that is bound by
memory and a message share a memory bus evenly, and kernels of several workers on one processor share its time
evenly. A kernel's cap is what it attains alone (`Device.kernel_s`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.graph.ir import FLOATING, ITEM_BYTES
from planner.program.tasks import Compute, Fetch, LocalCopy, Message, Reduce, Send, WorkerProgram
from simulator.fairness import ActivityClass
from simulator.sharing import Sharing
from topologies import Device, Kernel, Machine, Product

COPY = "elementwise"  # packing and unpacking attain what an element-wise kernel does
READ_AND_WRITE = 2
COMBINE = 3  # bytes touched per byte combined: the contribution is read, the result read and written


@dataclass(frozen=True, slots=True)
class Activity:
    """Work of a class of activities (its number), after a delay that uses nothing; its launches take the host."""

    number: int
    work: float
    delay_s: float = 0.0
    host_s: float = 0.0


class Costs:
    """Prices the tasks of one program on one machine; worker w runs on the w-th device."""

    def __init__(self, machine: Machine, sharing: Sharing) -> None:
        self._machine = machine
        self._sharing = sharing
        self._routes: dict[tuple[int, int, bool], Activity] = {}
        self._kernels: dict[object, Activity] = {}
        self._totals: dict[int, int] = {}  # by the identity of messages, which transfers share

    def compute(self, program: WorkerProgram, task: Compute) -> Activity:
        """Price kernels run one after the other, each call a launch of its own that does its share."""
        launches = sum(len(kernel.calls) for kernel in task.kernels)
        if not launches:
            return Activity(-1, 0.0)
        dtype = _dtype(program, task)
        key = (program.worker, dtype, task.category, task.operations, task.touched_bytes, task.products, launches)
        if key not in self._kernels:
            operations, nbytes = task.operations / launches, task.touched_bytes / launches
            shapes: Sequence[Product | None] = task.products or (None,) * launches
            calls = Counter(Kernel(task.category, dtype, operations, nbytes, product) for product in shapes)
            self._kernels[key] = self._activity(self._machine.devices[program.worker], calls)
        return self._kernels[key]

    def pack(self, program: WorkerProgram, task: Send) -> Activity | None:
        """Price the copy of every outgoing message into staging; None where there is none.

        A device that streams messages launches what sends them, and reads them where they lie.
        """
        nbytes = self._total(task.messages)
        streams = self._machine.devices[program.worker].streams_messages
        return self._copy(program.worker, nbytes, 0 if streams else READ_AND_WRITE * nbytes)

    def unpack(self, program: WorkerProgram, task: Fetch | Reduce) -> Activity | None:
        """Price what ends a transfer: received and local pieces copied into the buffer, or combined in it.

        Where messages are streamed, local pieces are left, unless they were combined with the first message.
        """
        buffer = program.buffers[task.buffer]
        received = self._total(task.messages)
        local = sum(map(_elements, task.local)) * ITEM_BYTES[buffer.dtype]
        if self._machine.devices[program.worker].streams_messages:
            copied = 0 if received and isinstance(task, Reduce) else local
            return self._copy(program.worker, received + local, READ_AND_WRITE * copied)
        if isinstance(task, Fetch):
            return self._copy(program.worker, received + local, READ_AND_WRITE * (received + local))
        return self._copy(program.worker, buffer.nbytes, buffer.nbytes + COMBINE * (received + local))

    def message(self, source: int, target: int, *, combined: bool) -> Activity:
        """Price a message that is `combined` or copied where it goes to: its class, work beyond its bytes, latency."""
        key = (source, target, combined)
        if key not in self._routes:
            route, device = self._machine.route(source, target), self._machine.devices[target]
            uses = dict(route.uses)
            if device.streams_messages:
                touched = COMBINE if combined else READ_AND_WRITE
                uses[self._machine.memories[device.memory].resource] += touched / device.efficiency[COPY]
            number = self._sharing.number(ActivityClass(tuple(uses.items())))
            self._routes[key] = Activity(number, route.half_bandwidth_bytes, route.latency_s)
        return self._routes[key]

    def _copy(self, worker: int, moved_bytes: int, touched_bytes: int) -> Activity | None:
        """Price a launch, where anything is moved, and the traffic in memory that is not part of messages."""
        if not moved_bytes:
            return None
        key = (worker, touched_bytes)
        if key not in self._kernels:
            copy = Kernel(COPY, "", 0.0, touched_bytes)
            self._kernels[key] = self._activity(self._machine.devices[worker], {copy: 1})
        return self._kernels[key]

    def _total(self, messages: tuple[Message, ...]) -> int:
        if id(messages) not in self._totals:
            self._totals[id(messages)] = sum(message.nbytes for message in messages)
        return self._totals[id(messages)]

    def _activity(self, device: Device, calls: Mapping[Kernel, int]) -> Activity:
        """Price so many calls of each kernel."""
        launches = sum(calls.values())
        waits = launches * device.launch_latency_s, launches * device.host_launch_s
        alone_s = sum(count * device.kernel_s(kernel) for kernel, count in calls.items())
        if not alone_s:
            return Activity(-1, 0.0, *waits)
        bandwidth = device.memory_bandwidth_bytes_per_s
        work = alone_s * bandwidth
        streamed = sum(count * kernel.nbytes / device.streaming_efficiency(kernel) for kernel, count in calls.items())
        uses = []
        if streamed:
            uses.append((self._machine.memories[device.memory].resource, streamed / work))
        if device.processor is not None:
            uses.append((device.processor, device.cores / bandwidth))
        return Activity(self._sharing.number(ActivityClass(tuple(uses), bandwidth)), work, *waits)


def _dtype(program: WorkerProgram, task: Compute) -> str:
    """Name the dtype that a task computes in: its first output's that is a float, else its first output's."""
    first = None
    for kernel in task.kernels:
        for call in kernel.calls:
            for buffer, _ in call.outputs:
                dtype = program.buffers[buffer].dtype
                if dtype in FLOATING:
                    return dtype
                first = first or dtype
    return first or "float32"


def _elements(copy: LocalCopy) -> int:
    return sum(piece.elements for piece in copy.pieces)
