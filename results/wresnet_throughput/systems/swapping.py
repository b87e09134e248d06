"""*Swapping* (Tofu, Sec 7.1): a replica on every device, whose memory blocks are swapped to the host's memory.

After Rhu and others, "vDNN" (2016). The iteration that is simulated is the second, which finds memory as the first one
left it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, product

import numpy as np

from planner.graph.facts import phases
from planner.program.tasks import Buffer, Message, Program, Receive, Send, Task, Wait, WorkerProgram
from planner.program.workspace import needed_bytes
from results.wresnet_throughput.systems.flow import (
    Flow,
    blocks_in_order,
    flow_of,
    layer_by_layer,
    next_transfer,
    worker_program,
)
from results.wresnet_throughput.systems.host import with_host_memory
from results.wresnet_throughput.systems.layers import layers_of
from results.wresnet_throughput.systems.placement import devices_of_tasks
from results.wresnet_throughput.systems.system import NoRoomError, SystemProgram, SystemRequest
from simulator.interpreter import interpret
from tensor_partitioner.display import tracked
from topologies import Device, Machine

AHEAD = (1.0, 0.5, 0.25, 0.0625, 0.0)
"""For tasks that together use so much of the memory blocks may be requested ahead; the fastest is taken."""

SOON = 8
"""Blocks that are used by so many tasks to come are swapped out only where nothing else can be."""


@dataclass(slots=True)
class Moves:
    """The blocks that one task's request swaps out, drops (or that are dead), fetches, and makes anew."""

    out: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)


class Cache:
    """A device's memory: the blocks in it, the least recently requested first, and whether the host has them, too.

    The blocks of task p are requested before task `issued[p]`: as early as a share `ahead` of memory holds what all
    tasks from there to p use. Until then none of that leaves. Raises a NoRoomError where memory does not hold what one
    task uses.
    """

    def __init__(self, flow: Flow, capacity_bytes: float, ahead: float) -> None:
        self._flow, self._capacity, self._ahead = flow, capacity_bytes, ahead
        self._requests = [tuple(dict.fromkeys((*r, *w))) for r, w in zip(flow.reads, flow.writes, strict=True)]
        self.issued = self._windows()
        self._window: Counter[int] = Counter()
        self._changed: dict[int, bool] = {}
        self.resident: OrderedDict[int, int] = OrderedDict()  # block -> bytes
        self.used = self.most_used = 0
        self._on_host = set(flow.persistent)
        self._dying: dict[int, list[int]] = {}
        last = {block: position for position, blocks in enumerate(self._requests) for block in blocks}
        for block, position in last.items():
            if block not in flow.persistent:
                self._dying.setdefault(position, []).append(block)

    def _windows(self) -> list[int]:
        window: Counter[int] = Counter()
        starts, start, used = [], 0, 0
        for position, blocks in enumerate(self._requests):
            used += sum(self._flow.nbytes[block] for block in blocks if not window[block])
            window.update(blocks)
            while used > self._ahead * self._capacity and start < position:
                window.subtract(self._requests[start])
                used -= sum(self._flow.nbytes[block] for block in self._requests[start] if not window[block])
                start += 1
            if used > self._capacity:
                raise NoRoomError(f"expected room for {used:,} bytes of one task, found {self._capacity:,.0f}")
            starts.append(start)
        return starts

    def iteration(self) -> list[Moves]:
        """Request what every task uses, one after the other."""
        result, start = [], 0
        for position, issued in enumerate(self.issued):
            moves = Moves()
            self._pass(range(start, issued), moves)
            start = issued
            self._request(position, moves)
            result.append(moves)
        self._pass(range(start, len(self._requests)), Moves())
        return result

    def _pass(self, positions: range, moves: Moves) -> None:
        """Free what these tasks were the last to use, and let the rest of what they used leave."""
        for position in positions:
            self._window.subtract(self._requests[position])
            for block in self._dying.get(position, ()):
                if block in self.resident:
                    self.used -= self.resident.pop(block)
                    moves.gone.append(block)
                self._on_host.discard(block)

    def _request(self, position: int, moves: Moves) -> None:
        self._window.update(self._requests[position])
        missing = [block for block in self._requests[position] if block not in self.resident]
        self._make_room(sum(self._flow.nbytes[block] for block in missing), position, moves)
        for block in self._requests[position]:
            if block in missing:
                self.resident[block] = self._flow.nbytes[block]
                self.used += self._flow.nbytes[block]
                is_fetched = block in self._on_host and block in self._flow.reads[position]
                (moves.fetched if is_fetched else moves.new).append(block)
                self._changed[block] = False
            self.resident.move_to_end(block)
        for block in self._flow.writes[position]:
            self._changed[block] = True
            self._on_host.discard(block)
        self.most_used = max(self.most_used, self.used)

    def _make_room(self, nbytes: int, position: int, moves: Moves) -> None:
        if self.used + nbytes <= self._capacity:
            return
        soon = {block for blocks in self._requests[position + 1 : position + 1 + SOON] for block in blocks}
        free = [block for block in self.resident if not self._window[block]]
        for block in [b for b in free if b not in soon] + [b for b in free if b in soon]:
            self.used -= self.resident.pop(block)
            (moves.out if self._changed[block] else moves.gone).append(block)
            self._on_host.add(block)
            if self.used + nbytes <= self._capacity:
                return


class _Schedule:
    """The tasks of a device, those of the host's two streams of copies, and which blocks are there from when to when.

    The device asks for a task's copies when it requests the task's blocks, and waits for them just before the task. In
    between the streams do them, task by task: one takes in what is swapped out, and tells the other, which then gives
    out what takes that room, one task's blocks at a time.
    """

    def __init__(self, flow: Flow, moves: Sequence[Moves], resident: Sequence[int], pool: Cache, devices: int) -> None:
        self._flow, self._moves, self._devices = flow, moves, devices
        self._issued_at: defaultdict[int, list[int]] = defaultdict(list)
        for position, issued in enumerate(pool.issued):
            self._issued_at[issued].append(position)
        self._numbers = count(next_transfer(flow.worker))  # of transfers
        self._copies: defaultdict[int, list[int]] = defaultdict(list)  # transfers, by task
        self._flowing: list[int] = []
        self._is_untold = False  # of what is swapped out
        self._since = dict.fromkeys(resident, 0)
        self.tasks: list[Task] = []
        self.to_host: list[Task] = []
        self.from_host: list[Task] = []
        self.spans: list[tuple[int, int, int]] = []  # block, first and last task
        self.bytes_out = self.bytes_in = 0

    def run(self) -> None:
        """Lay out the iteration."""
        for position, task in enumerate(self._flow.worker.tasks):
            for issued in self._issued_at[position]:
                self._start_out(issued)
                self._start_in(issued)
            self.tasks += map(Wait, self._copies[position])
            self._since |= dict.fromkeys(self._moves[position].new, len(self.tasks))
            self.tasks.append(task)
        for block in list(self._since):
            self._leave(block)

    def _start_out(self, position: int) -> None:
        for block in (*self._moves[position].gone, *self._moves[position].out):
            self._leave(block)
        numbers = list(islice(self._numbers, len(self._moves[position].out)))
        for number, block in zip(numbers, self._moves[position].out, strict=True):
            nbytes = self._flow.nbytes[block]
            self.bytes_out += nbytes
            self.tasks.append(Send(number, block, None, (Message(self._devices, (), nbytes, 0),)))
            self.to_host.append(Receive(number, 0, None, self._to_all(nbytes), ()))
        self.to_host += map(Wait, numbers)
        self._copies[position] += numbers
        self._is_untold |= bool(numbers)

    def _start_in(self, position: int) -> None:
        if not self._moves[position].fetched:
            return
        if self._is_untold:
            self._tell()
        self.from_host += map(Wait, self._flowing)
        self._flowing = list(islice(self._numbers, len(self._moves[position].fetched)))
        for number, block in zip(self._flowing, self._moves[position].fetched, strict=True):
            nbytes = self._flow.nbytes[block]
            self.bytes_in += nbytes
            self._since[block] = len(self.tasks)
            self.tasks.append(Receive(number, block, None, (Message(self._devices + 1, (), nbytes, 0),), ()))
            self.from_host.append(Send(number, 0, None, self._to_all(nbytes)))
        self._copies[position] += self._flowing

    def _tell(self) -> None:
        """Let the stream that gives out wait for what was asked of the one that takes in."""
        number, self._is_untold = next(self._numbers), False
        self.to_host.append(Send(number, 0, None, (Message(self._devices + 1, (), 0, 0),)))
        self.from_host += (Receive(number, 0, None, (Message(self._devices, (), 0, 0),), ()), Wait(number))

    def _to_all(self, nbytes: int) -> tuple[Message, ...]:
        return tuple(Message(device, (), nbytes, 0) for device in range(self._devices))

    def _leave(self, block: int) -> None:
        since = self._since.pop(block)
        self.spans.append((block, since, max(since, len(self.tasks) - 1)))

    def buffers(self) -> Iterator[Buffer]:
        """Yield the program's buffers, which take no bytes by themselves, and one for every stay of a block."""
        for buffer in self._flow.worker.buffers:
            yield replace(buffer, nbytes=0, offset=0, first=0, last=0, kind="tensor")
        at = 0  # addresses of their own: blocks are never put together here
        for block, first, last in self.spans:
            buffer, nbytes = self._flow.worker.buffers[block], self._flow.nbytes[block]
            yield replace(buffer, nbytes=nbytes, offset=at, first=first, last=last, kind="tensor")
            at += max(nbytes, 1)


def swapping(request: SystemRequest) -> SystemProgram:
    """Run a replica on every device, each swapping to the host; NoRoomError where a task's blocks do not fit.

    Of two orders of the tasks, the graph's and layer by layer (unrolled layers are read at every timestep), and of how
    far ahead blocks are requested, the fastest is taken: of one device with its share of the links. Updates follow all
    else in both orders, so that all gradients are there at one time.
    """
    layers = layers_of(request.graph)
    flow = flow_of(worker_program(request.graph), layers)
    last, phase_of = 1 + max(layers.values(), default=0), phases(request.graph)
    layer_of = devices_of_tasks(flow, lambda node: last if phase_of[node] == "update" else layers[node])
    tasks = tuple(flow.worker.tasks[position] for position in layer_by_layer(flow.after, layer_of))
    orders = flow, blocks_in_order(replace(flow.worker, tasks=tasks))
    capacity = room_bytes(flow.worker, request.machine.devices[0], request.machine)
    alone = _with_share_of_links(request.machine, request.devices)

    def seconds(choice: tuple[Flow, float]) -> float:
        return interpret(_program(choice, capacity, 1), alone).seconds

    choices = tracked("choosing what to swap when", tuple(product(orders, AHEAD)))
    program = _program(min(choices, key=seconds), capacity, request.devices)
    machine = with_host_memory(request.machine, request.devices)
    return SystemProgram(program, machine, request.samples_of_replicas, helpers=2)


def _program(choice: tuple[Flow, float], capacity_bytes: float, devices: int) -> Program:
    """Return the program of so many replicas and their host, for tasks in an order and requests so far ahead."""
    flow, ahead = choice
    pool = Cache(flow, capacity_bytes, ahead)
    pool.iteration()
    resident = list(pool.resident)
    schedule = _Schedule(flow, pool.iteration(), resident, pool, devices)
    schedule.run()
    worker = WorkerProgram(0, tuple(schedule.tasks), tuple(schedule.buffers()), pool.most_used)
    swapped = (replace(worker.buffers[0], name="swapped"),) if schedule.bytes_out or schedule.bytes_in else ()
    streams = (
        WorkerProgram(devices + number, tuple(tasks), swapped, 0)
        for number, tasks in enumerate((schedule.to_host, schedule.from_host))
    )
    moved = np.zeros((devices + 2,) * 2, dtype=np.int64)
    moved[:devices, devices], moved[devices + 1, :devices] = schedule.bytes_out, schedule.bytes_in
    replicas = (replace(worker, worker=number) for number in range(devices))
    return Program((devices + 2,), (*replicas, *streams), {}, {}, moved)


def _with_share_of_links(machine: Machine, devices: int) -> Machine:
    """Return the machine of one device and the host, with that device's share of links that others use, too."""
    whole, alone = with_host_memory(machine, devices), with_host_memory(machine, 1)
    users = Counter(
        used
        for device in range(devices)
        for used in {use for ends in ((device, devices), (devices + 1, device)) for use, _ in whole.route(*ends).uses}
    )
    shares = (
        replace(resource, capacity=resource.capacity / max(1, users[number])) if resource.kind == "link" else resource
        for number, resource in enumerate(alone.resources)
    )
    return replace(alone, resources=tuple(shares))


def room_bytes(worker: WorkerProgram, device: Device, machine: Machine) -> float:
    """Bytes of a device's memory that blocks may take: all but what a worker needs beside its arena."""
    return machine.memories[device.memory].nbytes - needed_bytes(worker, device) + worker.arena_bytes
