"""The costs of tasks on their devices: an activity for each kernel, copy and message.

Kernels and copies progress in bytes at the memory bandwidth of their device, so they share a memory bus fairly with
messages. On a calibrated host all activities progress in seconds of the processor's cores; on a calibrated GPU, kernels
do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.graph.ir import ITEM_BYTES
from planner.program.calls import computed_dtype, posted, received, sent, spelled_compute
from planner.program.tasks import Compute, Message, Receive, Send, WorkerProgram
from simulator.classes import WorkerClasses
from simulator.fairness import ActivityClass
from simulator.sharing import Sharing
from simulator.transfers import Together
from topologies import Device, Estimates, Kernel, Machine, Product, TransferAmounts
from topologies.kernels import WRITE_AND_READ
from topologies.schema import Measured
from topologies.traffic import Choice, Pattern, choices, fastest

COPY = "elementwise"  # packing and unpacking are as efficient as element-wise kernels
NO_WORK = -1  # activity class that uses no resource
COMBINE = 3  # bytes touched per byte combined: the contribution is read, the result read and written


@dataclass(frozen=True, slots=True)
class Activity:
    """An amount of work of an activity class, which starts after `delay_s`. Launching it takes `host_s` of the host."""

    number: int
    work: float
    delay_s: float = 0.0
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LibraryOperation:
    """A library's operation, or a `part` of it, with the messages of its algorithm in shares of the payload."""

    activity: Activity
    kind: str
    algorithm: str
    pattern: Pattern
    part: float


class Costs:
    """Prices the tasks of a program on a machine. Worker w runs on device w.

    The price of one member of a class holds for all. Together they load the resources that their classes use.
    """

    def __init__(self, machine: Machine, sharing: Sharing, classes: WorkerClasses) -> None:
        self._machine = machine
        self._sharing = sharing
        self._classes = classes
        self._workers, self._messages = (sizes.tolist() for sizes in classes.sizes[:2])
        self._routes: dict[tuple[int, int, bool], Activity] = {}
        self._choices: dict[tuple[str, tuple[int, ...]], tuple[Choice, ...]] = {}
        self._operations: dict[tuple[int, float, bool], tuple[int, float, Pattern]] = {}  # by id of the choice
        self._kernels: dict[object, Activity] = {}
        self._totals: dict[int, int] = {}  # by id of the messages, which transfers share
        self._estimates: dict[int, Estimates] = {}  # by id of the measurements

    def compute(self, program: WorkerProgram, task: Compute) -> Activity:
        """Price the kernels of a task, which run in turn. Each call is one launch with an equal share of the work."""
        launches = sum(len(kernel.calls) for kernel in task.kernels)
        if not launches:
            return Activity(NO_WORK, 0.0)
        device = self._machine.devices[program.worker]
        if device.spec.measured is not None:
            seconds = self._estimated(device.spec.measured).compute_s(spelled_compute(program, task))
            if seconds is not None:
                return self._on_processor(device, seconds)
        dtype = computed_dtype(program, task)
        key = (program.worker, dtype, task.category, task.operations, task.touched_bytes, task.products, launches)
        if key not in self._kernels:
            operations, nbytes = task.operations / launches, task.touched_bytes / launches
            shapes: Sequence[Product | None] = task.products or (None,) * launches
            calls = Counter(Kernel(task.category, dtype, operations, nbytes, product) for product in shapes)
            self._kernels[key] = self._activity(program.worker, calls)
        return self._kernels[key]

    def pack(self, program: WorkerProgram, task: Send, *, together: bool) -> Activity | None:
        """Price the copies of outgoing messages into staging. On devices that stream messages, only a launch remains.

        If messages are sent `together`, as an operation of a library, its latency includes the launch.
        """
        device = self._machine.devices[program.worker]
        if together and device.spec.streams_messages:
            return None
        if device.spec.is_host_rank:
            return self._part_of_transfer(device, "send", sent(program, task))
        nbytes = self._total(task.messages)
        return self._copy(program.worker, nbytes, 0 if device.spec.streams_messages else WRITE_AND_READ * nbytes)

    def post(self, program: WorkerProgram, task: Receive) -> Activity | None:
        """Price the start of a receive. It only takes time of a processor."""
        device = self._machine.devices[program.worker]
        return self._part_of_transfer(device, "post", posted(task)) if device.spec.is_host_rank else None

    def woken(self, worker: int, waited_s: float) -> Activity | None:
        """Price the processor time of a rank that polled for messages for `waited_s` seconds."""
        device = self._machine.devices[worker]
        measured = device.spec.measured
        if measured is None or not device.spec.is_host_rank:
            return None
        return self._on_processor(device, measured.wake_s + waited_s * measured.waiting_share)

    def unpack(self, program: WorkerProgram, task: Receive, *, together: bool) -> Activity | None:
        """Price the end of a transfer: pieces, received and local, are copied into the buffer or combined with it.

        On devices that stream messages, only local pieces remain, unless they were combined with the first message; for
        the operations of a library (`together`) nothing remains.
        """
        device = self._machine.devices[program.worker]
        if together and device.spec.streams_messages:
            return None
        if device.spec.is_host_rank:
            kind = "reduce" if task.reducer is not None else "fetch"
            return self._part_of_transfer(device, kind, received(program, task))
        buffer = program.buffers[task.buffer]
        arrived = self._total(task.messages)
        local = sum(piece.elements for copy in task.local for piece in copy.pieces) * ITEM_BYTES[buffer.dtype]
        if device.spec.streams_messages:
            copied = 0 if arrived and task.reducer is not None else local
            return self._copy(program.worker, arrived + local, WRITE_AND_READ * copied)
        if task.reducer is None:
            return self._copy(program.worker, arrived + local, WRITE_AND_READ * (arrived + local))
        return self._copy(program.worker, buffer.nbytes, buffer.nbytes + COMBINE * (arrived + local))

    def message(self, source: int, target: int, *, combined: bool) -> Activity:
        """Price a message that is copied or `combined` at its target: activity class, extra work, latency."""
        key = (source, target, combined)
        if key not in self._routes:
            route, device = self._machine.route(source, target), self._machine.devices[target]
            if device.spec.is_host_rank and device.memory == self._machine.devices[source].memory:
                return self._routes.setdefault(key, Activity(NO_WORK, 0.0, route.latency_s))
            members = self._messages[self._classes.pairs[source, target]]
            number = self._number(self._message_uses(source, target, combined), members)
            self._routes[key] = Activity(number, route.half_bandwidth_bytes, route.latency_s)
        return self._routes[key]

    def operation(self, group: Together, *, combined: bool) -> LibraryOperation:
        """Price messages as one operation of a library, with the algorithm that is fastest for their size.

        Each half of an all-reduce takes half of its time and moves half of its bytes.
        """
        kind, part, choice = self._choice(group, group.groups[0].workers)
        key = (id(choice), part, combined)
        if key not in self._operations:
            self._operations[key] = self._shared_links(choice, part, combined, len(group.groups))
        number, units, pattern = self._operations[key]
        activity = Activity(number, group.nbytes * units, choice.alone.idle_s(group.nbytes) * part)
        return LibraryOperation(activity, kind, choice.algorithm, pattern, part)

    def patterns(self, group: Together) -> Iterator[Pattern]:
        """Yield the message pattern of each group of a class."""
        for member in group.groups:
            _, part, choice = self._choice(group, member.workers)
            yield choice.pattern.times(part)

    def _choice(self, group: Together, devices: tuple[int, ...]) -> tuple[str, float, Choice]:
        """Return the operation, the part of it that the messages are, and the library's choice of algorithm."""
        kind, part = group.collective.operation
        if (kind, devices) not in self._choices:
            self._choices[kind, devices] = choices(self._machine, kind, devices)
        return kind, part, fastest(self._choices[kind, devices], group.nbytes)

    def _shared_links(self, choice: Choice, part: float, combined: bool, members: int) -> tuple[int, float, Pattern]:
        """Return an operation's activity class, its bytes on the busiest link per byte of payload, and its pattern."""
        pattern, uses = choice.pattern.times(part), defaultdict[int, float](float)
        for (source, target), share in pattern.flows.items():
            for resource, amount in self._message_uses(source, target, combined).items():
                uses[resource] += share * amount
        units = max(amount for resource, amount in uses.items() if self._machine.resources[resource].kind == "link")
        cap = None if choice.bandwidth_share == 1 else units / (choice.alone.s_per_byte * part)
        shares = {resource: amount / units for resource, amount in uses.items()}
        return self._number(shares, members, cap), units, pattern

    def _number(self, uses: Mapping[int, float], members: int, cap: float | None = None) -> int:
        """Return the activity class of all members of a class, given the uses of one member."""
        return self._sharing.number(ActivityClass(self._classes.folded(uses.items(), members), cap))

    def _message_uses(self, source: int, target: int, combined: bool) -> dict[int, float]:
        """Return what one byte of a message uses.

        A device that streams messages unpacks or combines them at the same time.
        """
        uses, device = dict(self._machine.route(source, target).uses), self._machine.devices[target]
        if device.spec.streams_messages:
            touched = COMBINE if combined else WRITE_AND_READ
            uses[self._machine.memories[device.memory].resource] += touched / device.spec.efficiency.elementwise
        return uses

    def _estimated(self, measured: Measured) -> Estimates:
        if id(measured) not in self._estimates:
            self._estimates[id(measured)] = Estimates(measured)
        return self._estimates[id(measured)]

    def _part_of_transfer(self, device: Device, kind: str, moved: TransferAmounts) -> Activity | None:
        if device.spec.measured is None or not (moved.messages or moved.pieces):
            return None
        return self._on_processor(device, self._estimated(device.spec.measured).transfer_s(kind, moved))

    def _on_processor(self, device: Device, seconds: float) -> Activity:
        """Price `seconds` of the cores of the device."""
        uses = {} if device.processor is None else {device.processor: float(device.spec.cores)}
        return Activity(self._number(uses, 1, 1.0), seconds)

    def _copy(self, worker: int, moved_bytes: int, touched_bytes: int) -> Activity | None:
        """Price a launch, if anything is moved, and the memory traffic that is not part of the messages themselves."""
        if not moved_bytes:
            return None
        key = (worker, touched_bytes)
        if key not in self._kernels:
            copy = Kernel(COPY, "", 0.0, touched_bytes)
            self._kernels[key] = self._activity(worker, {copy: 1})
        return self._kernels[key]

    def _total(self, messages: tuple[Message, ...]) -> int:
        if id(messages) not in self._totals:
            self._totals[id(messages)] = sum(message.nbytes for message in messages)
        return self._totals[id(messages)]

    def _activity(self, worker: int, calls: Mapping[Kernel, int]) -> Activity:
        """Price the given number of calls of each kernel."""
        device = self._machine.devices[worker]
        launches = sum(calls.values())
        waits = launches * device.spec.launch_latency_s, launches * device.spec.host_launch_s
        alone_s = sum(count * device.kernel_s(kernel) for kernel, count in calls.items())
        if not alone_s:
            return Activity(NO_WORK, 0.0, *waits)
        bandwidth = device.spec.memory_bandwidth_bytes_per_s
        work = alone_s * bandwidth
        streamed = sum(count * kernel.nbytes / device.streaming_efficiency(kernel) for kernel, count in calls.items())
        uses = {}
        if streamed:
            uses[self._machine.memories[device.memory].resource] = streamed / work
        if device.processor is not None:
            uses[device.processor] = device.spec.cores / bandwidth
        members = self._workers[self._classes.workers[worker]]
        return Activity(self._number(uses, members, bandwidth), work, *waits)
