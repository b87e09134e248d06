"""What a worker takes of its device's memory, line by line: the table of plans with a limit, simulation and `execute`.

Libraries have memory of their own beside arena and kernels' temporaries: their defaults, each with its source. What a
device's file says is reserved has a context and NCCL's communicators in it, as measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.program.tasks import WorkerProgram
from planner.program.workspace import worker_workspace_bytes
from topologies import Device

MIB = 1 << 20
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a device's memory, what for, and where the figure comes from."""

    what: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Libraries:
    """What libraries' memory depends on.

    These are the device's compute capability, whether PyTorch's kernels run, and how many peers NCCL sends messages to.
    """

    capability: tuple[int, int]
    pytorch: bool = False
    nccl_peers: int = 0


def _cublas_bytes(libraries: Libraries) -> int:
    return 32 * MIB if libraries.capability >= HOPPER else 4 * MIB


def _pytorch_cublas_bytes(libraries: Libraries) -> int:
    if not libraries.pytorch:
        return 0
    return 32 * MIB if libraries.capability >= HOPPER else 2 * 4096 * 1024 + 8 * 16 * 1024


def _pytorch_segment_bytes(libraries: Libraries) -> int:
    """Return the first segments of small and of large blocks, which are mostly empty."""
    return (2 + 20) * MIB if libraries.pytorch else 0


CHANNEL_BYTES = 14 * MIB
"""Buffers of 10, 2 and 2 MiB."""


def _nccl_bytes(libraries: Libraries) -> int:
    """Return the buffers of channels to peers: 32 each as on H100s, before these 2 at the least."""
    channels = 32 if libraries.capability >= HOPPER else 2
    return libraries.nccl_peers * channels * CHANNEL_BYTES


LIBRARY_NEEDS: tuple[tuple[str, Callable[[Libraries], int], str], ...] = (
    ("cuBLAS workspace", _cublas_bytes, "NVIDIA, cuBLAS, cublasSetWorkspace"),
    ("PyTorch's cuBLAS workspace", _pytorch_cublas_bytes, "pytorch, aten/src/ATen/cuda/CublasHandlePool.cpp"),
    ("PyTorch's first segments", _pytorch_segment_bytes, "pytorch, c10/cuda/CUDACachingAllocator.cpp"),
    ("NCCL's buffers", _nccl_bytes, "github.com/NVIDIA/nccl, issues 1685 and 1706"),
)
"""What libraries take of a device, the rule for it, and its source."""


def library_needs(libraries: Libraries) -> list[Need]:
    """Return what libraries take of a device's memory, of those that take any."""
    needs = [Need(what, nbytes(libraries), source) for what, nbytes, source in LIBRARY_NEEDS]
    return [need for need in needs if need.nbytes]


def device_needs(worker: WorkerProgram, device: Device) -> list[Need]:
    """Return what a worker takes of a machine's device: arena, workspace, libraries, and what is reserved."""
    spec = device.spec
    capability = None if spec.compute_capability is None else _capability(spec.compute_capability)
    return [
        arena_need(worker.arena_bytes),
        workspace_need(worker, spec.workspace_bytes),
        *([] if capability is None else library_needs(Libraries(capability))),
        Need("reserve", math.ceil(spec.reserved_bytes), f"the device type {spec.name}"),
    ]


def needed_bytes(worker: WorkerProgram, device: Device) -> int:
    """Return what a worker takes of its device's memory in all."""
    return sum(need.nbytes for need in device_needs(worker, device))


def arena_need(nbytes: int) -> Need:
    """Return what holds every buffer."""
    return Need("arena", nbytes, "the program")


def workspace_need(worker: WorkerProgram, limit_bytes: float) -> Need:
    """Return the most that any kernel needs while it runs, where it may take `limit_bytes`."""
    return Need("workspace", worker_workspace_bytes(worker, limit_bytes), "planner/program/workspace.py")


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
