"""Which buffers of a worker's program share their bytes, and which tasks use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.program.tasks import Compute, Receive, Send, Wait, WorkerProgram
from simulator.memory import overwritten


def holders(worker: WorkerProgram) -> list[int]:
    """Find, per buffer, the first buffer that used its bytes: itself, or what it overwrites in place."""
    holder = list(range(len(worker.buffers)))
    for old, new in overwritten(worker).items():
        holder[new] = holder[old]
    return holder


def uses(worker: WorkerProgram) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield, per task, the buffers that it reads and those that it writes; what a call adds to is read, too."""
    ended = {task.transfer: task for task in worker.tasks if isinstance(task, Receive)}
    for task in worker.tasks:
        match task:
            case Compute():
                calls = [call for kernel in task.kernels for call in kernel.calls]
                read = [n for call in calls for n, _ in (*call.inputs, *(call.outputs if call.combine else ()))]
                yield read, [n for call in calls for n, _ in call.outputs]
            case Send() | Receive():
                sent = [task.buffer] if isinstance(task, Send) and task.messages else []
                yield sent, [] if task.staging is None else [task.staging]
            case Wait() if task.transfer not in ended:
                yield [], []
            case Wait():
                receive = ended[task.transfer]
                staging = [] if receive.staging is None else [receive.staging]
                yield [*staging, *(copy.buffer for copy in receive.local)], [receive.buffer]
