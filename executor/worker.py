"""The worker's loop: a program's tasks, resolved once to actions on views of the arena, then run in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from executor.arena import Arena, Memory
from executor.backend import synchronize
from executor.exchange import Action, combiner, in_order
from executor.kernels import KERNEL_SET, NARROW, KernelCall, KernelSet
from executor.schedules import Rate
from executor.transport import Transport
from executor.values import Array
from planner.program.arena import align
from planner.program.tasks import Compute, Fetch, Kernel, Reduce, Send, SlicedCall, Task, Wait, WorkerProgram
from planner.program.workspace import combined_bytes


class Worker:
    """One worker's side of a program, over an arena that other programs of the same plan may share.

    `transport` is given the worker's memory and returns the transport; `rate` multiplies learning rates. Raises
    ValueError where the program contradicts itself or names an operator without a kernel.
    """

    def __init__(
        self,
        program: WorkerProgram,
        arena: Arena,
        transport: Callable[[Memory], Transport],
        rate: Rate | None = None,
        kernels: KernelSet = KERNEL_SET,
    ) -> None:
        self.program = program
        self.kernels = kernels
        self._rate = rate or Rate()
        self.memory = Memory(arena, program)
        self.transport = transport(self.memory)
        scratch_bytes = max((combined_bytes(program, call) for call in self._calls()), default=0)
        self._scratch = arena.xp.empty(scratch_bytes, np.uint8)
        ordered = self.transport.ordered
        self._actions = [ordered(number, self._action(task)) for number, task in enumerate(program.tasks)]
        self._finish = self.transport.finish()

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated beside the arena, by what they are; temporaries inside kernels are not among them."""
        sizes = dict(self.transport.outside_arena)
        if self._scratch.nbytes:
            sizes["partial results of one kernel call before they are combined"] = self._scratch.nbytes
        return sizes

    def run(self, settle: bool = False) -> list[float]:
        """Run one iteration; return the moment (perf_counter seconds) before the first task and after each task.

        The device is waited for at the end; with `settle` after every task.
        """
        xp = self.memory.xp
        moments = [time.perf_counter()]
        for action in self._actions:
            action()
            if settle:
                synchronize(xp)
            moments.append(time.perf_counter())
        self._finish()
        synchronize(xp)
        moments[-1] = time.perf_counter() if self._actions else moments[-1]
        return moments

    def run_looking(self, looks: Iterable[tuple[int, Action]]) -> None:
        """Run one iteration, untimed, with some actions between: each comes before the task at its position."""
        before: dict[int, list[Action]] = {}
        for position, look in looks:
            before.setdefault(position, []).append(look)
        for position, action in enumerate(self._actions):
            for look in before.get(position, ()):
                look()
            action()
        self._finish()
        synchronize(self.memory.xp)

    def _calls(self) -> Iterator[SlicedCall]:
        for task in self.program.tasks:
            if isinstance(task, Compute):
                for kernel in task.kernels:
                    yield from kernel.calls

    def _action(self, task: Task) -> Action:
        match task:
            case Send():
                return self.transport.send(task)
            case Fetch() | Reduce():
                return self.transport.receive(task)
            case Wait():
                return self.transport.wait(task)
            case Compute():
                return in_order([self._call(kernel, call) for kernel in task.kernels for call in kernel.calls])

    def _call(self, kernel: Kernel, call: SlicedCall) -> Action:
        """Return the action of one kernel call; one that combines computes into scratch first, unless it can add."""
        if kernel.op not in self.kernels.kernels:
            raise ValueError(f"node {kernel.node}: no kernel for operator {kernel.op}")
        part = self.memory.part
        targets = tuple(part(buffer, slices) for buffer, slices in call.outputs)
        adds = call.combine == "Sum" and kernel.op in self.kernels.adding and self._adds_up(targets)
        results = targets if adds or call.combine is None else self._scratch_like(targets)
        prepared = KernelCall(
            xp=self.memory.xp,
            inputs=tuple(part(buffer, slices) for buffer, slices in call.inputs),
            outputs=results,
            attributes=self._rate.applied(kernel.attributes),
            ranges=call.ranges,
            origins=call.origins,
        )
        compute = self.kernels.bind(kernel.op, prepared, adds)
        if adds or call.combine is None:
            return compute
        combine = combiner(self.memory.xp, call.combine)

        def action() -> None:
            compute()
            for target, result in zip(targets, results, strict=True):
                combine(target, result, out=target)

        return action

    def _adds_up(self, targets: tuple[Array, ...]) -> bool:
        """True if a kernel may add to these; in 16 bits what is added is rounded first, and a GPU has the bandwidth."""
        return self.memory.xp is np and all(target.dtype.name not in NARROW for target in targets)

    def _scratch_like(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        start, views = 0, []
        for array in arrays:
            views.append(self._scratch[start : start + array.nbytes].view(array.dtype).reshape(array.shape))
            start += align(array.nbytes)
        return tuple(views)
