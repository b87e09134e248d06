"""A worker's program as it runs: the tasks of its phases for every micro-batch, in the order of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.plans.records import is_repeated
from planner.program.tasks import Buffer, Compute, Kernel, Program, Receive, Send, Task, Wait, WorkerProgram

PERSISTENT = "persistent"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A task, by its position among the tasks of one micro-batch, run for a micro-batch."""

    position: int
    micro_batch: int
    phase: str


def occurrences(program: WorkerProgram) -> Iterator[Occurrence]:
    """Yield what a worker runs, in order; nothing for a program without steps."""
    last = max((micro_batch for _, micro_batch in program.steps), default=0)
    for number, micro_batch in program.steps:
        phase = program.phases[number]
        for position in range(phase.start, phase.stop):
            if micro_batch == last or position not in phase.closing:
                yield Occurrence(position, micro_batch, phase.name)


def in_order(program: WorkerProgram, *, apart: bool = False) -> WorkerProgram:
    """Return the program with every task repeated as it runs, on the slots and transfers of each repetition.

    Additional slots are buffers after the others. Tasks that do the same are one object. If `apart`, every micro-batch
    has its own buffer and transfer numbers; the buffers lie where its slots do, and each records when it is used.
    """
    return _Ordered(program, apart).program() if program.steps else program


def program_in_order(program: Program) -> Program:
    """Return a program whose workers have their tasks in order; every micro-batch has its own buffers and transfers."""
    return replace(program, workers=tuple(in_order(worker, apart=True) for worker in program.workers))


class _Ordered:
    def __init__(self, program: WorkerProgram, apart: bool) -> None:
        self._program, self._apart = program, apart
        self._count = 1 + max(micro_batch for _, micro_batch in program.steps)
        self._slots = [self._count if apart and buffer.slots else max(1, buffer.slots) for buffer in program.buffers]
        self._more = list(_ranges(len(program.buffers), (slots - 1 for slots in self._slots)))
        often = (
            set(range(phase.start, phase.stop)) - phase.closing for phase in program.phases if is_repeated(phase.name)
        )
        self._often = set[int]().union(*often)
        self._tasks: dict[tuple[int, object, bool], Task] = {}
        self._uses = _uses_by_phase(program)

    def program(self) -> WorkerProgram:
        done = tuple(occurrences(self._program))
        buffers = tuple(self._buffers(_Moments(done, self._count)))
        return WorkerProgram(self._program.worker, tuple(map(self._task, done)), buffers, self._program.arena_bytes)

    def _buffers(self, moments: _Moments) -> Iterator[Buffer]:
        buffers, slots = self._program.buffers, self._slots
        for buffer, count, uses in zip(buffers, slots, self._uses, strict=True):
            yield moments.used(buffer, uses, self._users(buffer, 0, count))
        for buffer, count, uses in zip(buffers, slots, self._uses, strict=True):
            for slot in range(1, count):
                users = self._users(buffer, slot, count)
                place = buffer.slot(self._place(buffer, users[0]) if users else slot)  # evaluation has one micro-batch
                yield replace(moments.used(buffer, uses, users), offset=place.offset, slots=0, taken=())

    def _slot(self, buffer: Buffer, micro_batch: int, slots: int) -> int:
        """Return a micro-batch's slot.

        For computed tensors the last micro-batch has slot 0, in which readers look at the end.
        """
        if buffer.taken and slots == buffer.slots and not self._apart:
            return (0, *sorted({*buffer.taken} - {0})).index(buffer.taken[micro_batch])
        return (micro_batch + (buffer.kind != PERSISTENT) * (1 - self._count)) % slots

    def _place(self, buffer: Buffer, micro_batch: int) -> int:
        """Return how many slots after the buffer a micro-batch's slot lies."""
        return buffer.taken[micro_batch] if buffer.taken else self._slot(buffer, micro_batch, buffer.slots)

    def _users(self, buffer: Buffer, slot: int, slots: int) -> Sequence[int]:
        """Return the micro-batches that use a slot; all of them if the buffer has no slots."""
        if not buffer.slots:
            return range(self._count)
        return [number for number in range(self._count) if self._slot(buffer, number, slots) == slot]

    def _number(self, buffer: int, micro_batch: int) -> int:
        """Return the buffer number of a micro-batch's slot."""
        slot = self._slot(self._program.buffers[buffer], micro_batch, self._slots[buffer])
        return self._more[buffer][slot - 1] if slot else buffer

    # --- tasks

    def _task(self, done: Occurrence) -> Task:
        """Return the task that is run; repetitions that do not differ are the same object."""
        task = self._program.tasks[done.position]
        turn = done.micro_batch if done.position in self._often else 0
        adding = done.micro_batch > 0 and isinstance(task, Compute) and any(k.accumulates for k in task.kernels)
        key = done.position, self._what_differs(task, turn), adding
        if key not in self._tasks:
            self._tasks[key] = self._at(task, done.micro_batch, turn)
        return self._tasks[key]

    def _what_differs(self, task: Task, turn: int) -> object:
        """Return how a task differs between micro-batches: by its slots, or always if it has its own transfers."""
        if self._apart or not isinstance(task, Compute) or any(kernel.rows for kernel in task.kernels):
            return turn
        return tuple(self._number(buffer, turn) for buffer in sorted(_buffers_of(task, {})))

    def _at(self, task: Task, micro_batch: int, turn: int) -> Task:
        """Return a task as it is run for a micro-batch."""

        def number(buffer: int) -> int:
            return self._number(buffer, micro_batch)

        if isinstance(task, Compute):
            kernels = tuple(_kernel_at(kernel, micro_batch, number) for kernel in task.kernels)
            return replace(task, kernels=kernels)
        transfer = task.transfer + self._program.transfers * turn
        if isinstance(task, Send | Receive):
            staging = None if task.staging is None else number(task.staging)
            task = replace(task, buffer=number(task.buffer), staging=staging)
        if isinstance(task, Receive):
            task = replace(task, local=tuple(replace(copy, buffer=number(copy.buffer)) for copy in task.local))
        return replace(task, transfer=transfer)


class _Moments:
    """The times at which every micro-batch's tasks run, by position."""

    def __init__(self, done: Iterable[Occurrence], count: int) -> None:
        self._moments: list[dict[int, int]] = [{} for _ in range(count)]
        self._end = 0
        for moment, occurrence in enumerate(done):
            self._moments[occurrence.micro_batch][occurrence.position] = self._end = moment

    def used(self, buffer: Buffer, uses: Iterable[int], micro_batches: Iterable[int]) -> Buffer:
        """Return a slot used at these positions, with its lifetime over all its micro-batches."""
        if buffer.kind == PERSISTENT:
            return replace(buffer, first=0, last=self._end)
        of_all = [self._moments[number] for number in micro_batches]
        moments = [moments[position] for moments in of_all for position in uses if position in moments]
        return replace(buffer, first=min(moments, default=0), last=max(moments, default=0))


def _uses_by_phase(program: WorkerProgram) -> list[list[int]]:
    """Return each buffer's first and last use within every phase, and the ends of its recorded lifetime."""
    uses: list[set[int]] = [{buffer.first, buffer.last} if buffer.nbytes else set() for buffer in program.buffers]
    ended: dict[int, set[int]] = {}
    for phase in program.phases:
        spans: dict[int, tuple[int, int]] = {}
        for position in range(phase.start, phase.stop):
            for buffer in _buffers_of(program.tasks[position], ended):
                spans[buffer] = spans.get(buffer, (position, position))[0], position
        for buffer, span in spans.items():
            uses[buffer].update(span)
    return [sorted(positions) for positions in uses]


def _kernel_at(kernel: Kernel, micro_batch: int, number: Callable[[int], int]) -> Kernel:
    attributes, adds = kernel.attributes, kernel.accumulates and micro_batch > 0
    if kernel.rows and micro_batch:
        attributes = {**attributes, "row": micro_batch * kernel.rows}
    calls = tuple(
        replace(
            call,
            inputs=tuple((number(buffer), slices) for buffer, slices in call.inputs),
            outputs=tuple((number(buffer), slices) for buffer, slices in call.outputs),
            combine="Sum" if adds else call.combine,
        )
        for call in kernel.calls
    )
    return replace(kernel, attributes=attributes, calls=calls)


def _buffers_of(task: Task, ended: dict[int, set[int]]) -> set[int]:
    """Return the buffers that a task uses; `ended` records the buffers of transfers, which a `Wait` uses."""
    if isinstance(task, Compute):
        calls = (call for kernel in task.kernels for call in kernel.calls)
        return {buffer for call in calls for buffer, _ in (*call.inputs, *call.outputs)}
    if isinstance(task, Wait):
        return ended.get(task.transfer, set())
    started = {task.buffer} if isinstance(task, Send) else set[int]()
    started |= set() if task.staging is None else {task.staging}
    copied = (copy.buffer for copy in task.local) if isinstance(task, Receive) else ()
    ended.setdefault(task.transfer, set()).update(started, {task.buffer}, copied)
    return started


def _ranges(start: int, lengths: Iterable[int]) -> Iterator[range]:
    """Yield consecutive ranges of these lengths."""
    for length in lengths:
        yield range(start, start + length)
        start += length
