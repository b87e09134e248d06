"""The memory that a job needs on its ranks' GPUs, and whether it is free, checked before anything is allocated."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from executor.backend import device_place
from executor.cluster import Cluster
from executor.kernels import LIBRARIES
from executor.kernels.call import NARROW
from executor.kernels.derived import UPDATES
from executor.process.launch import SharedError
from executor.training import RankPrograms
from executor.worker import AUTO, kernel_calls
from planner.failures import BAD_INPUT
from planner.grouping import grouped
from planner.program.tasks import Receive, Send, SlicedCall, WorkerProgram, distinct, extents
from planner.program.workspace import MIB, Libraries, Need, arena_need, library_needs, workspace_need
from tensor_partitioner.display import quantity
from topologies.schema import WORKSPACE_BYTES

TEMPORARIES = "temporaries of kernels, estimated"
CHECKED = "arena of the check's one worker"
SINGLE_BYTES = 4
SHARES: Mapping[bool, tuple[float, float]] = {False: (0.6, 1.7), True: (0.0, 0.75)}
"""Temporaries of a weight update and of other kernels, relative to operands and results in single precision.

The key says whether kernels are PyTorch's. CuPy's kernels additionally copy 16-bit operands and results in single
precision.
"""


SIZE = attrgetter("nbytes")
"""The order of needs: by bytes."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that one rank needs: lines that are certain, and an estimate of its kernels' temporaries."""

    needs: tuple[Need, ...]
    temporaries: Need

    @property
    def nbytes(self) -> int:
        """Total bytes without temporaries."""
        return sum(need.nbytes for need in self.needs)

    def beside(self, alone: Demand) -> Demand:
        """Return the demand of both if their kernels alternate and both arenas are allocated."""
        others = sorted((*self.needs[1:], *alone.needs[1:]), key=SIZE)
        larger = {need.what: need for need in others}  # the larger of each line
        arenas = self.needs[0], replace(alone.needs[0], what=CHECKED)
        return Demand((*arenas, *larger.values()), max(self.temporaries, alone.temporaries, key=SIZE))


def demand(programs: RankPrograms, xp: Any, transport: str, *, pytorch: bool) -> Demand:
    """Return what a rank needs on its device besides the context, which exists already."""
    workers = [program.worker for program in (programs.training, programs.evaluation) if program is not None]
    libraries = Libraries(
        capability=capability(xp),
        pytorch=pytorch,
        nccl_peers=len(peers(workers)) if transport == "nccl" else 0,
    )
    workspace = max((workspace_need(worker, WORKSPACE_BYTES) for worker in workers), key=SIZE)
    temporaries = max(temporaries_bytes(worker, pytorch=pytorch) for worker in workers)
    return Demand(
        (arena_need(programs.arena_bytes), workspace, *library_needs(libraries)),
        Need(TEMPORARIES, temporaries, "executor/needs.py"),
    )


def capability(xp: Any) -> tuple[int, int]:
    """Return the compute capability of the current device."""
    digits: str = xp.cuda.Device().compute_capability
    return int(digits[:-1]), int(digits[-1])


def peers(workers: Sequence[WorkerProgram]) -> set[int]:
    """Return the workers with which these programs exchange messages."""
    transfers = (task for worker in workers for task in distinct(worker.tasks) if isinstance(task, Send | Receive))
    return {message.peer for task in transfers for message in task.messages if message.nbytes}


def temporaries_bytes(worker: WorkerProgram, *, pytorch: bool) -> int:
    """Estimate the largest temporaries of any kernel call. Calls alternate."""
    calls = kernel_calls(distinct(worker.tasks))
    return max((_call_bytes(worker, kernel.op, call, pytorch) for kernel, call in calls), default=0)


def _call_bytes(worker: WorkerProgram, op: str, call: SlicedCall, pytorch: bool) -> int:
    update, other = SHARES[pytorch]
    places = [(worker.buffers[number], slices) for number, slices in (*call.inputs, *call.outputs)]
    copied = 1.0 if not pytorch and any(np.dtype(buffer.dtype) in NARROW for buffer, _ in places) else 0.0
    elements = sum(prod(extents(slices, buffer.shape)) for buffer, slices in places)
    return int(SINGLE_BYTES * elements * (copied + (update if op in UPDATES else other)))


def release(xp: Any) -> None:
    """Free the device memory that allocators reserve but do not use."""
    gc.collect()
    xp.get_default_memory_pool().free_all_blocks()
    for kernels in LIBRARIES.values():
        kernels.release()


def is_pytorch(library: str, xp: Any) -> bool:
    """Return whether the kernels that `--kernels` names are PyTorch's, on a GPU."""
    torch = LIBRARIES.get("torch")
    return torch is not None and library in ("torch", AUTO) and torch.obstacle(xp) is None


def require_room(ranks: Cluster, xp: Any, plan: str, own: Demand) -> int:
    """Return the bytes that will be in use on this rank's GPU (collective). Raises SharedError if they are not free.

    Ranks of one GPU share it. If only the estimated temporaries may not fit, rank 0 prints a warning.
    """
    release(xp)
    ranks.barrier()
    free, total = xp.cuda.runtime.memGetInfo()
    place = device_place(xp)
    everyone = enumerate(ranks.all_gather((place, own, int(free))))
    sharing = grouped((where, (rank, demanded, room)) for rank, (where, demanded, room) in everyone)
    for members in sharing.values():
        numbers, demands, rooms = zip(*members, strict=True)
        lack, estimated = (need - min(rooms) for need in _needed(demands))
        if lack > 0:
            raise SharedError(f"{plan}: {room_line(numbers, demands, min(rooms))}", BAD_INPUT)
        if estimated > 0 and ranks.rank == 0:
            line = room_line(numbers, demands, min(rooms), estimate=True)
            print(f"warning: {plan}: {line}", file=sys.stderr, flush=True)
    return int(total - free) + _needed([demanded for _, demanded, _ in sharing[place]])[1]


def _needed(demands: Sequence[Demand]) -> tuple[int, int]:
    """Return the bytes that are certain, and those with temporaries."""
    certain = sum(demanded.nbytes for demanded in demands)
    return certain, certain + sum(demanded.temporaries.nbytes for demanded in demands)


def room_line(numbers: Sequence[int], demands: Sequence[Demand], free: int, *, estimate: bool = False) -> str:
    """Return what ranks of one GPU need, what is free, how much is missing, and what to do."""
    sizes = Counter[str]()
    for demanded in demands:
        lines = (*demanded.needs, demanded.temporaries) if estimate else demanded.needs
        sizes.update({need.what: need.nbytes for need in lines})
    lack = sizes.total() - free
    arenas = sum(demanded.needs[0].nbytes for demanded in demands)
    room = (arenas - lack) // len(numbers) // MIB
    advice = [
        *(["leave out --check"] if lack <= sizes[CHECKED] else []),
        "plan for more workers",
        *([f"plan with --memory {room}MiB"] if room > 0 else []),
    ]
    is_alone = len(numbers) == 1
    who = f"rank {numbers[0]}" if is_alone else f"ranks {', '.join(map(str, numbers))} of one GPU"
    verb = "may need" if estimate else "needs" if is_alone else "need"
    parts = ", ".join(f"{what} {quantity(nbytes, 'B')}" for what, nbytes in sizes.most_common() if nbytes)
    return (
        f"{who} {verb} {quantity(sizes.total(), 'B')} of a GPU with {quantity(free, 'B')} free, {quantity(lack, 'B')} "
        f"too much ({parts}): {', or '.join(advice)}"
    )
