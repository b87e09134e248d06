"""The transport of `torch.distributed`: packed messages by gloo between hosts' memories, by NCCL between GPUs.

A transfer is one batch of sends and receives. As transfers start in one common order on all ranks, and two workers
exchange at most one message each way in one of them, messages cannot be confused. Gloo's threads carry them while this
rank computes; with NCCL, what is queued behind a transfer's end waits for it, not the host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from executor.arena import Memory
from executor.exchange import Action
from executor.process.guard import GRACE_S
from executor.torch.tensors import tensor_of
from executor.transport.messages import Messages, Staged
from planner.failures import JobError

GONE = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "remote error", "recvValue failed")
"""How backends of `torch.distributed` say that the other end is no more."""


@contextmanager
def others_may_be_lost() -> Iterator[None]:
    """Turn a backend's error about another rank's end into a JobError, after the launcher had time to end this one."""
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in GONE):
            raise
        time.sleep(GRACE_S)
        raise JobError(f"another rank is gone: {str(error).partition(']')[2].strip() or error}") from error


class ProcessGroupMessages(Messages):
    """Messages of a process group of PyTorch's, whose ranks are the workers."""

    def __init__(self, memory: Memory, group: dist.ProcessGroup, _crowded: bool) -> None:
        super().__init__(memory, group.size())
        self._group = group

    def exchange(self, outgoing: Staged, incoming: Staged) -> tuple[Action, Action]:
        """Return the actions that start sending and receiving messages in staging buffers, and that end both."""
        kinds = ((dist.isend, outgoing), (dist.irecv, incoming))
        operations = [
            dist.P2POp(kind, tensor_of(data), peer, self._group) for kind, messages in kinds for peer, data in messages
        ]
        works: list[dist.Work] = []

        def start() -> None:
            with others_may_be_lost():
                works.extend(dist.batch_isend_irecv(operations))

        def end() -> None:
            begun = time.perf_counter()
            with others_may_be_lost():
                for work in works:
                    work.wait()
            works.clear()
            self.waits.append((begun, time.perf_counter()))

        return start, end
