"""The transport of `torch.distributed`: packed messages, by gloo between host memories, by NCCL between GPUs.

Small messages between processes of one host use our own sockets (`executor.torch.sockets`). GPU memory is staged in
host memory for gloo and for sockets.

A transfer is one batch of sends and receives, tagged with its number. NCCL has no tags. Its messages cannot be confused
as long as ranks start transfers in the same order, which they do unless stages have chunks. Gloo's threads carry
messages while this rank computes. With NCCL, the work queued after a transfer's end waits for it, not the host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import compress

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store as default_store  # where all ranks met

from executor.arena import Memory
from executor.exchange import Action
from executor.process.guard import GRACE_S
from executor.torch.sockets import LocalSockets
from executor.torch.tensors import tensor_of
from executor.transport.messages import Messages, Staged
from executor.transport.staging import Staging, staging
from planner.failures import JobError

GONE = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "remote error", "recvValue failed")
"""Error texts of `torch.distributed` backends for a lost peer."""

LATE = ("Timed out", "timed out", "timeout")
"""Error texts for a peer that was not in time, or stopped waiting."""


@contextmanager
def others_may_be_lost() -> Iterator[None]:
    """Turn a backend's error about other ranks into a JobError that names them.

    The launcher gets time to end this process first. The named ranks are those that do not come here too and report
    that they wait for others.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not any(words in str(error) for words in GONE + LATE):
            raise
        said = str(error).partition("]")[2].strip() or str(error)
        who = " and ".join(f"rank {rank}" for rank in _missing()) or "another rank"
        raise JobError(f"{who} is gone or late: {said}") from error


def _missing() -> list[int]:
    """Return the ranks that do not report that they wait for others, by the store they all share."""
    store, ranks = default_store(), range(dist.get_world_size())
    store.set(f"waiting/{dist.get_rank()}", "")
    time.sleep(GRACE_S)
    return [rank for rank in ranks if not store.check([f"waiting/{rank}"])]


class ProcessGroupMessages(Messages):
    """Messages of a PyTorch process group, whose ranks are the workers."""

    def __init__(self, memory: Memory, group: dist.ProcessGroup, sockets: LocalSockets) -> None:
        super().__init__(memory, group.size())
        self._group, self._sockets = group, sockets
        self._is_nccl = dist.get_backend(group) == "nccl"
        self._staging = Staging(memory) if self._is_nccl else staging(memory)

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated outside the arena, by purpose."""
        return self._staging.outside_arena

    def exchange(self, outgoing: Staged, incoming: Staged) -> tuple[Action, Action]:
        """Return the actions that start sending and receiving messages in staging buffers, and that end both."""
        (sent, far), (received, from_far) = map(self._by_socket, (outgoing, incoming))
        kinds = ((dist.isend, self._group.send, far), (dist.irecv, self._group.recv, from_far))
        messages = [(kind, begin, tensor_of(data), peer) for kind, begin, side in kinds for peer, data in side]
        tag = self.transfer
        batch = [dist.P2POp(kind, tensor, peer, self._group, tag) for kind, _, tensor, peer in messages]
        works: list[dist.Work] = []

        def start() -> None:
            self._staging.start(outgoing, incoming)
            with others_may_be_lost():
                for peer, data in sent:
                    self._sockets.send(peer, tag, data)
                if self._is_nccl:
                    works.extend(dist.batch_isend_irecv(batch))
                else:  # skips PyTorch's checks of each operation of a batch
                    works.extend(begin([tensor], peer, tag) for _, begin, tensor, peer in messages)

        def end() -> None:
            begun = time.perf_counter()
            with others_may_be_lost():
                for peer, data in received:
                    self._sockets.receive(peer, tag, data)
                for work in works:
                    work.wait()
            works.clear()
            self.waits.append((begun, time.perf_counter()))
            self._staging.end(incoming)

        return start, end

    def _by_socket(self, messages: Staged) -> tuple[list[tuple[int, memoryview]], Staged]:
        """Return the messages that sockets carry, and the others, both in staging."""
        small = [self._sockets.carries(peer, data.nbytes) for peer, data in messages]
        staged = [(peer, self._staging.host(data)) for peer, data in messages]
        rest = [message for message, is_small in zip(staged, small, strict=True) if not is_small]
        return [(peer, data.data) for peer, data in compress(staged, small)], rest
