"""Interpret a program in simulated time, with a process for each worker and callbacks for transfers.

Without overlap, a transfer's messages start with the later of the two tasks of a worker that start it, and the worker
waits until they are complete, unless it sends them to another pipeline stage. Without communication, transfers keep
their order but take no time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simpy import Environment, Event

from planner.program.in_order import program_in_order
from planner.program.tasks import Compute, Program, Receive, Send, Wait, WorkerProgram
from simulator.classes import WorkerClasses, each_alone
from simulator.costs import NO_WORK, Activity, Costs, LibraryOperation
from simulator.sharing import Sharing
from simulator.transfers import Numbers, Sent, Together, Transfer, transfers
from tensor_partitioner.display import progress
from topologies import Machine

UNPRICED = -2
Steps = Generator[Event, object, None]


class DeadlockError(RuntimeError):
    """The workers of a program wait for each other forever. The message names the task of each."""


@dataclass(frozen=True, slots=True)
class Switches:
    """Options of the interpreter: overlap transfers with computation, let them take time, record every message.

    With a `library`, collectives are its operations: each participant waits for all others.
    """

    overlap: bool = True
    communicate: bool = True
    record_messages: bool = False
    library: bool = False


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """A message in flight, from the moment when both ends have started it to its completion.

    For an operation of a library, all that its algorithm sends from one worker to another.
    """

    transfer: int
    source: int
    target: int
    nbytes: int
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Operated:
    """An operation of a library in all groups of a class.

    `payload_bytes` is the payload of each group; `pair_bytes` the bytes of all messages that it replaces.
    """

    operation: LibraryOperation
    groups: int
    payload_bytes: int
    pair_bytes: int

    @property
    def wire_bytes(self) -> float:
        """Bytes that all groups send."""
        return self.groups * self.payload_bytes * sum(self.operation.pattern.flows.values())


@dataclass(frozen=True, slots=True)
class BlockedTime:
    """A span in which a worker was blocked, in one of its tasks, by the last incomplete message of a transfer.

    Both ends of that message had been started at `started_s`; it had a latency of `latency_s` and was complete at
    `arrived_s`. The worker may notice that only at `end_s`.
    """

    task: int
    begin_s: float
    end_s: float
    started_s: float
    latency_s: float
    arrived_s: float


@dataclass(slots=True, eq=False)
class Timeline:
    """Start and end of every task on the representative of each class of workers, and the bytes moved: [from, to].

    `blocked` lists when each worker waited for messages; `in_flight_s` is how long each worker had incoming or outgoing
    messages in flight. `bytes` counts the bytes that workers lack, by owner; `wire_bytes` the bytes sent over links,
    which differ if a library's `operations` (by transfer) move them.
    """

    starts_s: list[list[float]]
    stops_s: list[list[float]]
    bytes: NDArray[np.int64]
    wire_bytes: NDArray[np.float64] | NDArray[np.int64]
    compute_s: list[float]
    blocked: list[list[BlockedTime]]
    in_flight_s: list[float]
    seconds: float = 0.0
    messages: list[MessageSpan] = field(default_factory=list)
    operations: dict[int, list[Operated]] = field(default_factory=dict)


def interpret(
    program: Program, machine: Machine, switches: Switches | None = None, classes: WorkerClasses | None = None
) -> Timeline:
    """Run one iteration of a program on a machine.

    With `classes`, the program has only the representative of each class. Raises `DeadlockError` if workers wait
    forever, and `TopologyError` if the machine has too few devices.
    """
    classes = classes or each_alone(len(program.workers), machine)
    machine.require_devices(len(classes.workers))
    return _Interpreter(program_in_order(program), machine, switches or Switches(), classes).run()


class _InFlight:
    """Measures how long each worker has messages in flight."""

    def __init__(self, workers: int) -> None:
        self._messages = np.zeros(workers, dtype=np.int64)
        self._since_s = np.zeros(workers)
        self.seconds = np.zeros(workers)

    def add(self, sent: Sent, now_s: float) -> None:
        """Record the start of messages."""
        idle = self._messages == 0
        self._messages += sent.count(len(idle))
        self._since_s[idle & (self._messages > 0)] = now_s

    def remove(self, sent: Sent, now_s: float) -> None:
        """Record the completion of messages."""
        busy = self._messages > 0
        self._messages -= sent.count(len(busy))
        ended = busy & (self._messages == 0)
        self.seconds[ended] += now_s - self._since_s[ended]


class _Interpreter:
    def __init__(self, program: Program, machine: Machine, switches: Switches, classes: WorkerClasses) -> None:
        self._environment = Environment()
        self._sharing = Sharing(self._environment, classes.capacities(machine))
        self._costs = Costs(machine, self._sharing, classes)
        self._switches = switches
        self._classes = classes
        self._workers = program.workers
        self._transfers = transfers(program, classes, switches.library)
        self._posted: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._receiving: list[dict[int, Receive]] = [{} for _ in program.workers]
        k = len(program.workers)
        self._launched_s = [0.0] * k  # per worker: when its host has launched all kernels so far
        pairs = len(classes.ends)
        self._routes = np.full((2, pairs), UNPRICED, dtype=np.intp)  # activity classes, [copied, combined]
        self._latency_s = np.zeros(pairs)
        self._work_beyond_bytes = np.zeros(pairs)
        self._moved = np.zeros(pairs, dtype=np.int64)
        self._messaged = np.zeros(pairs, dtype=np.int64)
        self._payloads: Counter[Together] = Counter()
        self._in_flight = _InFlight(k)
        self._timeline = Timeline(
            starts_s=[[] for _ in range(k)],
            stops_s=[[] for _ in range(k)],
            bytes=np.zeros((0, 0), dtype=np.int64),
            wire_bytes=np.zeros((0, 0)),
            compute_s=[0.0] * k,
            blocked=[[] for _ in range(k)],
            in_flight_s=[0.0] * k,
        )

    def run(self) -> Timeline:
        with progress("tasks", sum(len(worker.tasks) for worker in self._workers)) as advance:
            for number, worker in enumerate(self._workers):
                self._environment.process(self._work(number, worker, advance))
            self._environment.run()
        self._check_finished()
        self._timeline.bytes = self._classes.of_pairs(self._moved)
        self._timeline.wire_bytes = self._on_wires()
        self._timeline.in_flight_s = self._in_flight.seconds.tolist()
        self._timeline.seconds = max((stops[-1] for stops in self._timeline.stops_s if stops), default=0.0)
        return self._timeline

    # --- a worker's tasks

    def _work(self, number: int, worker: WorkerProgram, advance: Callable[[], None]) -> Steps:
        environment = self._environment
        starts, stops = self._timeline.starts_s[number], self._timeline.stops_s[number]
        for task in worker.tasks:
            starts.append(environment.now)
            if isinstance(task, Compute):
                yield from self._busy(number, self._costs.compute(worker, task))
                self._timeline.compute_s[number] += environment.now - starts[-1]
            else:
                yield from self._take_part(number, worker, task)
            stops.append(environment.now)
            advance()

    def _take_part(self, number: int, worker: WorkerProgram, task: Send | Receive | Wait) -> Steps:
        if isinstance(task, Wait):
            yield from self._complete(number, self._transfers.get(task.transfer))
            started = self._receiving[number].pop(task.transfer, None)
            if started is not None and self._switches.communicate:
                together = self._transfers[task.transfer].is_together
                yield from self._busy(number, self._costs.unpack(worker, started, together=together))
            return
        if isinstance(task, Send):
            if self._switches.communicate:
                together = self._transfers[task.transfer].is_together
                yield from self._busy(number, self._costs.pack(worker, task, together=together))
        else:
            self._receiving[number][task.transfer] = task
            if self._switches.communicate:
                yield from self._busy(number, self._costs.post(worker, task))
        yield from self._start(number, self._transfers[task.transfer], task)

    def _start(self, worker: int, transfer: Transfer, task: Send | Receive) -> Steps:
        """Start this worker's half of a transfer. Without overlap, start it with its last task and wait for the end."""
        if self._switches.overlap:
            self._post(transfer.number, worker, outgoing=isinstance(task, Send))
            return
        transfer.starters[worker] -= 1
        transfer.left[worker] |= isinstance(task, Send) and task.apart
        if not transfer.starters[worker]:
            self._post(transfer.number, worker, outgoing=True)
            self._post(transfer.number, worker, outgoing=False)
            if not transfer.left[worker]:
                yield from self._complete(worker, transfer)

    def _complete(self, worker: int, transfer: Transfer | None) -> Steps:
        if transfer is None or not transfer.pending[worker]:
            return
        begin_s = self._environment.now
        event = transfer.waiting[worker] = Event(self._environment)
        yield event
        arrived_s = self._environment.now
        if self._switches.communicate:
            yield from self._busy(worker, self._costs.woken(self._workers[worker].worker, arrived_s - begin_s))
        self._timeline.blocked[worker].append(
            BlockedTime(
                task=len(self._timeline.stops_s[worker]),
                begin_s=begin_s,
                end_s=self._environment.now,
                started_s=float(transfer.last_start_s[worker]),
                latency_s=float(transfer.last_latency_s[worker]),
                arrived_s=arrived_s,
            )
        )

    def _busy(self, worker: int, activity: Activity | None) -> Steps:
        """Run an activity after the host has launched it. The host launches in order, ahead of the device."""
        if activity is None or not (activity.work or activity.delay_s or activity.host_s):
            return
        self._launched_s[worker] += activity.host_s
        delay_s = max(0.0, self._launched_s[worker] - self._environment.now) + activity.delay_s
        event = Event(self._environment)
        begin: Callable[[], object] = event.succeed
        if activity.work:
            begin = partial(self._sharing.start, activity.number, activity.work, event.succeed)
        if delay_s:
            self._sharing.after(delay_s, begin)
        else:
            begin()
        yield event

    # --- messages

    def _post(self, transfer: int, worker: int, *, outgoing: bool) -> None:
        """Start one end of a worker's messages. All that start at the same moment are matched together."""
        if not self._posted:
            self._sharing.after(0.0, self._match)
        self._posted[transfer][not outgoing].append(worker)

    def _match(self) -> None:
        """Start the messages whose other end has also started."""
        posted = list(self._posted.items())
        self._posted.clear()
        for number, (senders, receivers) in posted:
            transfer = self._transfers[number]
            if transfer.is_together:
                for group, sent in transfer.start_together(senders, receivers):
                    self._operate(transfer, group, sent)
            elif len(sent := transfer.start(senders, receivers)):
                self._flow(transfer, sent)

    def _flow(self, transfer: Transfer, sent: Sent) -> None:
        now_s = self._environment.now
        self._in_flight.add(sent, now_s)
        if not self._switches.communicate:
            self._complete_messages(transfer, sent, now_s, 0.0)
            return
        numbers, latency_s = self._priced(sent, transfer.combined)
        for latency in np.unique(latency_s).tolist():
            chosen = np.flatnonzero(latency_s == latency)
            arrive = partial(self._arrive, transfer, start_s=now_s, latency_s=latency)
            self._sharing.after(latency, partial(self._begin, sent[chosen], numbers[chosen], arrive))

    def _operate(self, transfer: Transfer, group: Together, sent: Sent) -> None:
        """Start the messages of a group as one operation of a library."""
        now_s = self._environment.now
        self._in_flight.add(sent, now_s)
        if not self._switches.communicate:
            self._complete_messages(transfer, sent, now_s, 0.0)
            return
        operation = self._costs.operation(group, combined=transfer.combined)
        nbytes = int(sent.nbytes @ self._classes.sizes[1][sent.pairs])
        operated = Operated(operation, len(group.groups), group.nbytes, nbytes)
        self._timeline.operations.setdefault(transfer.number, []).append(operated)
        self._payloads[group] += 1
        activity = operation.activity

        def arrive() -> None:
            flows = operation.pattern.flows
            sources, targets = np.array(list(flows)).T
            self._record(transfer, sources, targets, np.array(list(flows.values())) * group.nbytes, now_s)
            self._complete_messages(transfer, sent, now_s, activity.delay_s)

        self._sharing.after(activity.delay_s, partial(self._sharing.start, activity.number, activity.work, arrive))

    def _begin(self, sent: Sent, numbers: NDArray[np.intp], arrive: Callable[[Sent], None]) -> None:
        empty = (sent.nbytes == 0) | (numbers == NO_WORK)
        if empty.any():
            arrive(sent[empty])
            sent, numbers = sent[~empty], numbers[~empty]
        if len(sent):
            work = sent.nbytes + self._work_beyond_bytes[sent.pairs]
            self._sharing.start_many(numbers, work, lambda slots: arrive(sent[slots]))

    def _priced(self, sent: Sent, combined: bool) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the activity classes and latencies of messages. Routes are priced on first use."""
        routes = self._routes[int(combined)]
        numbers = routes[sent.pairs]
        if (numbers == UNPRICED).any():
            for pair in sent.pairs.tolist():
                activity = self._costs.message(*self._classes.ends[pair].tolist(), combined=combined)
                routes[pair], self._latency_s[pair] = activity.number, activity.delay_s
                self._work_beyond_bytes[pair] = activity.work
            numbers = routes[sent.pairs]
        return numbers, self._latency_s[sent.pairs]

    def _arrive(self, transfer: Transfer, sent: Sent, start_s: float, latency_s: float) -> None:
        self._messaged[sent.pairs] += sent.nbytes
        self._record(transfer, sent.sources, sent.targets, sent.nbytes, start_s)
        self._complete_messages(transfer, sent, start_s, latency_s)

    def _record(
        self, transfer: Transfer, sources: Numbers, targets: Numbers, nbytes: NDArray[Any], start_s: float
    ) -> None:
        """Record messages for a trace. Only called when every worker is alone in its class."""
        if self._switches.record_messages:
            spans = zip(sources.tolist(), targets.tolist(), np.rint(nbytes).astype(int).tolist(), strict=True)
            now_s = self._environment.now
            self._timeline.messages += [MessageSpan(transfer.number, *span, start_s, now_s) for span in spans]

    def _on_wires(self) -> NDArray[np.float64] | NDArray[np.int64]:
        """Return the bytes sent over links by pairs and by a library's operations: [from, to]."""
        total = self._classes.of_pairs(self._messaged)
        if not self._payloads:
            return total
        sent = total.astype(np.float64)
        for group, times in self._payloads.items():
            for pattern in self._costs.patterns(group):
                for pair, share in pattern.flows.items():
                    sent[pair] += share * group.nbytes * times
        return sent

    def _complete_messages(self, transfer: Transfer, sent: Sent, start_s: float, latency_s: float) -> None:
        self._moved[sent.pairs] += sent.nbytes
        self._in_flight.remove(sent, self._environment.now)
        transfer.complete(sent, start_s, latency_s)

    def _check_finished(self) -> None:
        stuck = []
        for worker, stops in zip(self._workers, self._timeline.stops_s, strict=True):
            position = len(stops)
            if position < len(worker.tasks):
                task = worker.tasks[position]
                what = "" if isinstance(task, Compute) else f" of transfer {task.transfer}"
                stuck.append(f"worker {worker.worker} in task {position}, {type(task).__name__}{what}")
        if stuck:
            raise DeadlockError(f"workers wait for each other forever: {'; '.join(stuck)}")
