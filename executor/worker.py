"""The worker's loop: a program's tasks, resolved once to actions on views of the arena, then run in order.

Kernel calls are made by the chosen library, or by the fastest per operator.
"""

from __future__ import annotations

import time
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from types import ModuleType

import numpy as np

from executor.arena import Action, Arena, Memory, combiner, in_order, nothing
from executor.backend import HOST_CLOCK, Clock, on_one_stream, synchronize
from executor.cluster import Cluster
from executor.kernels import KERNELS, LIBRARIES, NATIVE, KernelCall, KernelSet
from executor.kernels.call import BEYOND_32_BITS
from executor.schedules import LEARNING_RATE, Rate
from executor.transport import Transport
from executor.values import Array
from planner.errors import DataError, InputError
from planner.grouping import grouped, summed
from planner.program.tasks import (
    Compute,
    Kernel,
    Receive,
    Send,
    SlicedCall,
    Slices,
    Task,
    Wait,
    WorkerProgram,
    align,
    distinct,
)
from planner.program.workspace import combined_bytes


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


def kernel_calls(tasks: Iterable[Task]) -> Iterator[tuple[Kernel, SlicedCall]]:
    """Yield every call of every kernel, in order."""
    for task in tasks:
        if isinstance(task, Compute):
            for kernel in task.kernels:
                for call in kernel.calls:
                    yield kernel, call


class KernelCalls:
    """The calls of a program's kernels on a memory. `rate` scales learning rates."""

    def __init__(self, memory: Memory, kernels: KernelSet, rate: Rate) -> None:
        self._memory, self._kernels, self._rate = memory, kernels, rate
        combined = (combined_bytes(memory.program, call) for _, call in kernel_calls(distinct(memory.program.tasks)))
        self.scratch = memory.xp.empty(max(combined, default=0), np.uint8)
        self._faults = None if memory.xp is np or not self._has_integers() else memory.xp.zeros(1, bool)

    def _has_integers(self) -> bool:
        """Return whether a kernel writes integers, which may overflow."""
        calls = kernel_calls(distinct(self._memory.program.tasks))
        return any(self._memory.buffers[place].dtype == "int32" for _, call in calls for place, _ in call.outputs)

    def action(self, kernel: Kernel, call: SlicedCall) -> Action:
        """Return the action of one kernel call.

        A call that combines computes into scratch first, unless its kernel can add.
        """
        if kernel.op not in self._kernels.kernels:
            raise ValueError(f"node {kernel.node}: no kernel for operator {kernel.op}")
        targets = self._parts(call.outputs)
        adds = call.combine == "Sum" and kernel.op in self._kernels.adding and self._adds_up(targets)
        results = targets if adds or call.combine is None else self._scratch_like(targets)
        compute = self._kernels.bind(kernel.op, self._prepared(kernel, call, results), adds)
        if adds or call.combine is None:
            return compute
        combine = combiner(self._memory.xp, call.combine)

        def action() -> None:
            compute()
            for target, result in zip(targets, results, strict=True):
                combine(target, result, out=target)

        return action

    def at_once(self, first: Task, second: Task) -> Action | None:
        """Return the action that runs two tasks on the same operands with one kernel; None if there is none."""
        calls = [*kernel_calls([first]), *kernel_calls([second])]
        if len(calls) != 2:
            return None
        compute = self._kernels.at_once.get((calls[0][0].op, calls[1][0].op))
        are_alike = calls[0][1].inputs == calls[1][1].inputs and all(call.combine is None for _, call in calls)
        if compute is None or not are_alike:
            return None
        return partial(compute, *(self._prepared(kernel, call, self._parts(call.outputs)) for kernel, call in calls))

    def several(self, tasks: Sequence[Task]) -> Action | None:
        """Return the action that runs consecutive calls of one operator at once; None if that is impossible.

        It exists only on a GPU.
        """
        calls = list(kernel_calls(tasks))
        (kernel, _), *_ = calls
        if self._memory.xp is np or kernel.op not in self._kernels.several or any(c.combine for _, c in calls):
            return None
        return self._kernels.several[kernel.op]([self._prepared(*call, self._parts(call[1].outputs)) for call in calls])

    def _prepared(self, kernel: Kernel, call: SlicedCall, outputs: tuple[Array, ...]) -> KernelCall:
        return KernelCall(
            xp=self._memory.xp,
            inputs=self._parts(call.inputs),
            outputs=outputs,
            attributes=self._rate.applied(kernel),
            ranges=call.ranges,
            origins=call.origins,
            faults=self._faults,
        )

    def require_no_faults(self) -> None:
        """Raise a DataError if data broke a rule since the last check. Waits for a GPU."""
        if self._faults is not None and bool(self._faults.get()[0]):
            self._faults.fill(0)
            raise DataError(BEYOND_32_BITS)

    def _parts(self, places: Iterable[tuple[int, Slices]]) -> tuple[Array, ...]:
        return tuple(self._memory.part(buffer, slices) for buffer, slices in places)

    def _adds_up(self, targets: tuple[Array, ...]) -> bool:
        """Return whether a kernel may add to these arrays.

        16-bit addends would be rounded first, and a GPU has the bandwidth for a separate addition.
        """
        return self._memory.xp is np and all(target.dtype in (np.float32, np.float64) for target in targets)

    def _scratch_like(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        start, views = 0, []
        for array in arrays:
            views.append(self.scratch[start : start + array.nbytes].view(array.dtype).reshape(array.shape))
            start += align(array.nbytes)
        return tuple(views)


AUTO = "auto"
"""Selects, for every operator, the library that is faster on the job's own calls."""

TRIALS = 3
"""Runs of a call, of which the fastest counts. The first one touches memory."""


def kernel_set(library: str, memory: Memory, cluster: Cluster) -> KernelSet:
    """Return a library's kernels. `auto` selects the fastest for every operator (collective) and overwrites the memory.

    On a GPU `auto` is PyTorch, if it computes there. Raises InputError if the library is not loaded or does not support
    these arrays.
    """
    if library == AUTO and memory.xp is not np:
        torch = LIBRARIES.get("torch")
        return torch if torch is not None and torch.obstacle(memory.xp) is None else LIBRARIES["arrays"]
    if library in LIBRARIES:
        if (obstacle := LIBRARIES[library].obstacle(memory.xp)) is not None:
            raise InputError(f"kernels {library!r}: {obstacle}: use --kernels arrays")
        return LIBRARIES[library]
    if library != AUTO:
        raise InputError(f"kernels {library!r}: expected one of {', '.join((*LIBRARIES, AUTO))}")
    memory.arena.bytes[...] = 0  # zeros are also valid indices
    return _fastest(summed(taken for of_rank in cluster.all_gather(_seconds(memory)) for taken in of_rank.items()))


def _seconds(memory: Memory) -> Mapping[tuple[str, str], float]:
    """Return the seconds of all calls of each operator by each library, for operators that several have."""
    calls = {name: KernelCalls(memory, kernels, Rate()) for name, kernels in LIBRARIES.items()}
    alike = Counter(_alike(*call) for call in kernel_calls(memory.program.tasks) if _is_choice(call[0].op))
    firsts = {_alike(*call): call for call in reversed(list(kernel_calls(memory.program.tasks)))}
    seconds = defaultdict[tuple[str, str], float](float)
    for key, count in alike.items():
        for name in LIBRARIES:
            action = calls[name].action(*firsts[key])
            seconds[firsts[key][0].op, name] += count * min(_timed(action, memory) for _ in range(TRIALS))
    return seconds


def _is_choice(op: str) -> bool:
    return len({kernels.kernels[op] for kernels in LIBRARIES.values() if op in kernels.kernels}) > 1


def _alike(kernel: Kernel, call: SlicedCall) -> tuple[str, ...]:
    """Return everything that the duration of a call depends on."""
    ranges = {name: stop - start for name, (start, stop) in call.ranges.items()}
    return kernel.op, repr(kernel.attributes), repr(ranges), repr(call.combine)


def _timed(action: Action, memory: Memory) -> float:
    started = time.perf_counter()
    action()
    synchronize(memory.xp)
    return time.perf_counter() - started


def _fastest(seconds: Mapping[tuple[str, str], float]) -> KernelSet:
    ops = sorted({op for op, _ in seconds})
    chosen = {op: min(LIBRARIES, key=lambda name: seconds[op, name]) for op in ops}
    sets = {op: LIBRARIES[name] for op, name in chosen.items()}
    return KernelSet(
        library=_said(chosen),
        kernels=ChainMap({op: kernels.kernels[op] for op, kernels in sets.items()}, KERNELS),
        adding={op: kernels.adding[op] for op, kernels in sets.items() if op in kernels.adding},
        native=NATIVE | {op for op, kernels in sets.items() if op in kernels.native},
    )


def _said(chosen: Mapping[str, str]) -> str:
    """Return which operators each library computes. The first library computes all others."""
    first, *others = LIBRARIES
    parts = [
        f"{LIBRARIES[name].library} of {', '.join(op for op in chosen if chosen[op] == name)}"
        for name in others
        if name in chosen.values()
    ]
    return "; ".join([*parts, LIBRARIES[first].library])
