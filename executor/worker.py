"""The worker's loop: a program's tasks, resolved once to actions on views of the arena, then run in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from types import ModuleType

import numpy as np

from executor.arena import Action, Arena, Memory, in_order, nothing
from executor.backend import HOST_CLOCK, Clock, on_one_stream, synchronize
from executor.kernel_calls import KernelCalls, kernel_calls
from executor.kernels import LIBRARIES, KernelSet
from executor.schedules import LEARNING_RATE, Rate
from executor.transport import Transport
from planner.errors import InputError
from planner.grouping import grouped
from planner.program.tasks import Compute, Receive, Send, Task, Wait, WorkerProgram, distinct


class Worker:
    """One worker's side of a program, in an arena that other programs of the same plan may share.

    `transport` gets the worker's memory and returns the transport; `rate` scales learning rates. Raises ValueError if
    the program is inconsistent or has an operator without a kernel.
    """

    def __init__(
        self,
        program: WorkerProgram,
        arena: Arena,
        transport: Callable[[Memory], Transport],
        rate: Rate | None = None,
        kernels: KernelSet = LIBRARIES["arrays"],
    ) -> None:
        self.program = program
        self.memory = Memory(arena, program)
        self.transport = transport(self.memory)
        self._rate, self._kernels = rate or Rate(), kernels
        self._calls = KernelCalls(self.memory, kernels, self._rate)
        self._at_once: list[range] = []
        actions = enumerate(self._actions_of(program.tasks))
        self._actions = [self.transport.ordered(number, action) for number, action in actions]
        self._launch: Action | None = None
        self._finish = self.transport.finish()

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated outside the arena, by purpose, without temporaries inside kernels."""
        sizes = dict(self.transport.outside_arena)
        if self._calls.scratch.nbytes:
            sizes["partial results of one kernel call before they are combined"] = self._calls.scratch.nbytes
        return sizes

    def capture(self) -> None:
        """From now on, launch the work that all tasks queue at once; see `require_capture`.

        The tasks must have run before.

        Runs with looks, or timed by a device, are not affected.
        """
        capture = self.require_capture()
        self._rate.move(self.memory.xp)
        with np.errstate(all="ignore"), on_one_stream(self.memory.xp):
            self._launch = capture(self.memory.xp, in_order(self._actions))

    def require_capture(self) -> Callable[[ModuleType, Action], Action]:
        """Return the function that captures tasks as a device graph. Raises InputError if that is impossible."""
        tasks, capture = self.program.tasks, self._kernels.capture
        ops = {kernel.op for kernel, _ in kernel_calls(tasks) if LEARNING_RATE in kernel.attributes}
        if self.memory.xp is np or not all(isinstance(task, Compute) for task in tasks):
            raise InputError("--graphs: expected a plan of one worker on a GPU; leave out --graphs")
        if capture is None or not ops <= self._kernels.several.keys():
            raise InputError("--graphs: expected PyTorch's kernels, including its optimizers: use --kernels torch")
        return capture

    def run(self, clock: Clock = HOST_CLOCK, looks: Iterable[tuple[int, Action]] = ()) -> list[float]:
        """Run one iteration; return the moment (perf_counter seconds) before the first task and after each task.

        The device is synchronized at the end. The host's clock says when tasks were queued on a device, and when all
        were done; the device's clock when each was done. Each of `looks` is called before the task at its position, or
        after the last one.
        """
        before = grouped(looks)
        with np.errstate(all="ignore"), on_one_stream(self.memory.xp):  # NaN is a valid result
            started, readings, waits = time.perf_counter(), [clock.read()], [0]
            launch = None if before or clock.is_device else self._launch
            actions = self._actions if launch is None else [launch, *[nothing] * (len(self._actions) - 1)]
            for position, action in enumerate(actions):
                for look in before.get(position, ()):
                    look()
                action()
                readings.append(clock.read())
                waits.append(len(self.transport.waits))
            for look in before.get(len(self._actions), ()):
                look()
        self._finish()
        synchronize(self.memory.xp)
        self._calls.require_no_faults()
        ended, seconds = time.perf_counter(), clock.seconds(readings)
        moments = [started + moment - seconds[0] for moment in seconds]
        if self._actions and not clock.is_device:
            moments[-1] = ended
        self._keep_waits_within(moments, waits)
        self.divide(moments, waits, whole=launch is not None)
        return moments

    def divide(self, moments: list[float], waits: Sequence[int] | None = None, *, whole: bool = False) -> None:
        """Divide the time of tasks that one action runs, or of the `whole` step, among them, by the bytes they touch.

        Groups in which a task waited are not divided: `waits` has the cumulative number of waits before each task.
        """
        for group in [range(len(self._actions))] if whole else self._at_once:
            if waits is not None and waits[group.start] != waits[group.stop]:
                continue
            start, stop = moments[group.start], moments[group.stop]
            tasks = self.program.tasks[group.start : group.stop]
            touched = list(accumulate(task.touched_bytes if isinstance(task, Compute) else 0 for task in tasks))
            for position, nbytes in zip(group[1:], touched, strict=False):
                moments[position] = start + (stop - start) * nbytes / max(touched[-1], 1)

    def _keep_waits_within(self, moments: Sequence[float], counts: Sequence[int]) -> None:
        """Clip waits to their tasks: a device waits when it reaches the point that the host, running ahead, has passed.

        `counts` has the cumulative number of waits before each task.
        """
        waits = self.transport.waits
        for (start, stop), (first, last) in zip(pairwise(moments), pairwise(counts), strict=True):
            for number in range(first, last):
                begin, end = waits[number]
                waits[number] = min(max(begin, start), stop), min(max(end, start), stop)

    def _actions_of(self, tasks: Sequence[Task]) -> list[Action]:
        """Return an action for each task. If one kernel runs two tasks, it is the second's action."""
        by_task = {id(task): self._action(task) for task in distinct(tasks)}
        actions = [by_task[id(task)] for task in tasks]
        for number, neighbours in enumerate(pairwise(tasks)):
            if (action := self._calls.at_once(*neighbours)) is not None:
                actions[number : number + 2] = [nothing, action]
                self._at_once.append(range(number, number + 2))
        for numbers in alike(tasks):
            if (action := self._calls.several([tasks[number] for number in numbers])) is not None:
                actions[numbers.start : numbers.stop] = [*[nothing] * (len(numbers) - 1), action]
                self._at_once.append(numbers)
        return actions

    def _action(self, task: Task) -> Action:
        match task:
            case Send():
                return self.transport.send(task)
            case Receive():
                return self.transport.receive(task)
            case Wait():
                return self.transport.wait(task)
            case Compute():
                return in_order([self._calls.action(*call) for call in kernel_calls([task])])


def alike(tasks: Sequence[Task]) -> Iterator[range]:
    """Yield ranges of two or more consecutive tasks that are each one call of the same operator."""
    start = 0
    for op, group in groupby(tasks, _operator):
        stop = start + len(list(group))
        if op is not None and stop - start > 1:
            yield range(start, stop)
        start = stop


def _operator(task: Task) -> str | None:
    """Return the operator of a task that is a single call; None for others."""
    calls = list(kernel_calls([task]))
    return calls[0][0].op if len(calls) == 1 else None
