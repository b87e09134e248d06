"""The interpreter of a program in simulated time: one process per worker, callbacks and counters for messages.

Semantics, per worker, strictly in list order:

- `Compute` takes its kernels' time. `Send` packs, then starts its messages; `Fetch` and `Reduce` start receiving. A
  message flows once both ends have started it, after its route's latency. `Wait` lasts until all of this worker's
  messages of the transfer, in and out, are complete and then unpacks or combines.
- A worker's host launches its kernels one after the other, those that copy included, ahead of the device, and waits for
  nothing; a task's kernels start when the host has launched them all.
- Without overlap, a transfer's messages start at the later of the worker's tasks that start it, and the worker stays
  there until they are complete. The order common to all workers keeps this free of deadlock.
- Without communication, transfers keep their order but take no time: no packing, no latency, no flow, no unpacking.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from simpy import Environment, Event

from planner.program.tasks import Compute, Fetch, Message, Program, Reduce, Send, Task, Wait, WorkerProgram
from simulator.costs import Activity, Costs
from simulator.sharing import Sharing
from topologies import Machine

Steps = Generator[Event, object, None]
Key = tuple[int, int, int]  # transfer, source worker, target worker
Post = Callable[[], None]


class DeadlockError(RuntimeError):
    """A program in which workers wait for each other for ever; names what each is waiting in."""


@dataclass(frozen=True, slots=True)
class Switches:
    """What is simulated: do transfers overlap computation, do they take time, is every message recorded."""

    overlap: bool = True
    communicate: bool = True
    record_messages: bool = False


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """One message on its way: from when both ends had started it to its completion."""

    transfer: int
    source: int
    target: int
    nbytes: int
    start_s: float
    stop_s: float


@dataclass(slots=True, eq=False)
class Timeline:
    """When each worker began and ended each of its tasks, and what was moved."""

    starts_s: list[list[float]]
    stops_s: list[list[float]]
    bytes: NDArray[np.int64]
    compute_s: list[float]
    seconds: float = 0.0
    messages: list[MessageSpan] = field(default_factory=list)


def interpret(program: Program, machine: Machine, switches: Switches | None = None) -> Timeline:
    """Run one iteration of a program on a machine.

    Raises `DeadlockError` where workers wait for ever, `TopologyError` where the machine is too small.
    """
    machine.require_devices(len(program.workers))
    return _Interpreter(program, machine, switches or Switches()).run()


class _Worker:
    """What one worker knows of its transfers."""

    __slots__ = ("held", "launched_s", "pending", "program", "starters", "unpacking", "waiting")

    def __init__(self, program: WorkerProgram) -> None:
        self.program = program
        self.launched_s = 0.0  # when its host will have launched all kernels so far
        self.pending: Counter[int] = Counter()  # transfer -> own messages not complete
        self.waiting: dict[int, Event] = {}  # transfer -> what its Wait is blocked on
        self.unpacking: dict[int, Fetch | Reduce] = {}
        self.starters = Counter(task.transfer for task in program.tasks if isinstance(task, Send | Fetch | Reduce))
        self.held: defaultdict[int, list[Post]] = defaultdict(list)  # without overlap: posts of the earlier starters


class _Interpreter:
    def __init__(self, program: Program, machine: Machine, switches: Switches) -> None:
        self._environment = Environment()
        self._sharing = Sharing(self._environment, [resource.capacity for resource in machine.resources])
        self._costs = Costs(machine, self._sharing)
        self._switches = switches
        self._workers = [_Worker(worker) for worker in program.workers]
        self._sends: defaultdict[Key, deque[int]] = defaultdict(deque)
        self._receives: defaultdict[Key, deque[int]] = defaultdict(deque)
        self._combined = {task.transfer for task in program.workers[0].tasks if isinstance(task, Reduce)}
        k = len(program.workers)
        self._timeline = Timeline(
            starts_s=[[] for _ in range(k)],
            stops_s=[[] for _ in range(k)],
            bytes=np.zeros((k, k), dtype=np.int64),
            compute_s=[0.0] * k,
        )

    def run(self) -> Timeline:
        for worker in self._workers:
            self._environment.process(self._work(worker))
        self._environment.run()
        self._check_finished()
        self._timeline.seconds = max((stops[-1] for stops in self._timeline.stops_s if stops), default=0.0)
        return self._timeline

    def _work(self, worker: _Worker) -> Steps:
        number = worker.program.worker
        starts, stops = self._timeline.starts_s[number], self._timeline.stops_s[number]
        for task in worker.program.tasks:
            starts.append(self._environment.now)
            yield from self._perform(worker, task)
            stops.append(self._environment.now)
            if isinstance(task, Compute):
                self._timeline.compute_s[number] += stops[-1] - starts[-1]

    def _perform(self, worker: _Worker, task: Task) -> Steps:
        match task:
            case Compute():
                return self._busy(worker, self._costs.compute(worker.program, task))
            case Wait():
                return self._wait(worker, task)
            case Send():
                return self._send(worker, task)
            case Fetch() | Reduce():
                return self._receive(worker, task)

    def _send(self, worker: _Worker, task: Send) -> Steps:
        if self._switches.communicate:
            yield from self._busy(worker, self._costs.pack(worker.program, task))
        yield from self._start(worker, task, partial(self._post, worker, task, self._sends, self._receives))

    def _receive(self, worker: _Worker, task: Fetch | Reduce) -> Steps:
        worker.unpacking[task.transfer] = task
        yield from self._start(worker, task, partial(self._post, worker, task, self._receives, self._sends))

    def _start(self, worker: _Worker, task: Send | Fetch | Reduce, post: Post) -> Steps:
        """Start this worker's half of a transfer; without overlap, only with its last half, and wait for the end."""
        transfer = task.transfer
        worker.pending[transfer] += len(task.messages)
        if self._switches.overlap:
            post()
            return
        worker.held[transfer].append(post)
        worker.starters[transfer] -= 1
        if not worker.starters[transfer]:
            for held in worker.held.pop(transfer):
                held()
            yield from self._complete(worker, transfer)

    def _wait(self, worker: _Worker, task: Wait) -> Steps:
        yield from self._complete(worker, task.transfer)
        started = worker.unpacking.pop(task.transfer, None)
        if started is not None and self._switches.communicate:
            yield from self._busy(worker, self._costs.unpack(worker.program, started))

    def _complete(self, worker: _Worker, transfer: int) -> Steps:
        if worker.pending[transfer]:
            event = worker.waiting[transfer] = Event(self._environment)
            yield event

    def _busy(self, worker: _Worker, activity: Activity | None) -> Steps:
        """Wait for the host to launch it, which it does ahead of the device and in order, and carry it out."""
        if activity is None or not (activity.work or activity.delay_s or activity.host_s):
            return
        worker.launched_s += activity.host_s
        delay_s = max(0.0, worker.launched_s - self._environment.now) + activity.delay_s
        event = Event(self._environment)
        begin: Callable[[], object] = event.succeed
        if activity.work:
            begin = partial(self._sharing.start, activity.number, activity.work, event.succeed)
        if delay_s:
            self._sharing.after(delay_s, begin)
        else:
            begin()
        yield event

    def _post(
        self,
        worker: _Worker,
        task: Send | Fetch | Reduce,
        own: defaultdict[Key, deque[int]],
        other: defaultdict[Key, deque[int]],
    ) -> None:
        """Start one end of every message of a task; those whose other end has started flow."""
        number = worker.program.worker
        outgoing = own is self._sends
        for message in task.messages:
            key = (task.transfer, number, message.peer) if outgoing else (task.transfer, message.peer, number)
            started = other.get(key)
            if started:
                self._flow(key, message, started.popleft())
            else:
                own[key].append(message.nbytes)

    def _flow(self, key: Key, message: Message, nbytes: int) -> None:
        if nbytes != message.nbytes:
            transfer, source, target = key
            raise ValueError(
                f"transfer {transfer}: expected one size of the message from worker {source} to {target} at both ends,"
                f" found {message.nbytes} and {nbytes}"
            )
        arrive = partial(self._arrive, key, nbytes, self._environment.now)
        if not self._switches.communicate:
            arrive()
            return
        activity = self._costs.message(key[1], key[2], combined=key[0] in self._combined)
        begin: Callable[[], None] = arrive
        if nbytes:
            begin = partial(self._sharing.start, activity.number, nbytes + activity.work, arrive)
        self._sharing.after(activity.delay_s, begin)

    def _arrive(self, key: Key, nbytes: int, start_s: float) -> None:
        transfer, source, target = key
        self._timeline.bytes[source, target] += nbytes
        if self._switches.record_messages:
            self._timeline.messages.append(
                MessageSpan(transfer, source, target, nbytes, start_s, self._environment.now)
            )
        for number in (source, target):
            worker = self._workers[number]
            worker.pending[transfer] -= 1
            if not worker.pending[transfer] and transfer in worker.waiting:
                worker.waiting.pop(transfer).succeed()

    def _check_finished(self) -> None:
        stuck = []
        for worker in self._workers:
            number = worker.program.worker
            position = len(self._timeline.stops_s[number])
            if position < len(worker.program.tasks):
                task = worker.program.tasks[position]
                what = "" if isinstance(task, Compute) else f" of transfer {task.transfer}"
                stuck.append(f"worker {number} in task {position}, {type(task).__name__}{what}")
        if stuck:
            raise DeadlockError(f"workers wait for each other for ever: {'; '.join(stuck)}")
