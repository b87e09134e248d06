"""Memory needs of a worker on its device, line by line, for plans with a limit, simulation and `execute`.

Libraries use memory besides the arena and the kernels' workspace: these are their defaults, each with its source. A
device file's reserved bytes include a context and NCCL's communicators, as measured.
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
    """Bytes of a device's memory, their purpose, and the source of the figure."""

    what: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Libraries:
    """What the libraries' memory depends on.

    These are the device's compute capability, whether PyTorch's kernels run, and the number of peers that NCCL sends
    to.
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
    """Return the bytes of the first segments for small and for large blocks, which are mostly empty."""
    return (2 + 20) * MIB if libraries.pytorch else 0


CHANNEL_BYTES = 14 * MIB
"""Buffers of 10, 2 and 2 MiB per channel."""


def _nccl_bytes(libraries: Libraries) -> int:
    """Return the bytes of the channels' buffers: 32 channels per peer as on H100s, at least 2 on older devices."""
    channels = 32 if libraries.capability >= HOPPER else 2
    return libraries.nccl_peers * channels * CHANNEL_BYTES


LIBRARY_NEEDS: tuple[tuple[str, Callable[[Libraries], int], str], ...] = (
    ("cuBLAS workspace", _cublas_bytes, "NVIDIA, cuBLAS, cublasSetWorkspace"),
    ("PyTorch's cuBLAS workspace", _pytorch_cublas_bytes, "pytorch, aten/src/ATen/cuda/CublasHandlePool.cpp"),
    ("PyTorch's first segments", _pytorch_segment_bytes, "pytorch, c10/cuda/CUDACachingAllocator.cpp"),
    ("NCCL's buffers", _nccl_bytes, "github.com/NVIDIA/nccl, issues 1685 and 1706"),
)
"""Libraries' memory needs: the purpose, the function that computes the bytes, and its source."""


def library_needs(libraries: Libraries) -> list[Need]:
    """Return the libraries' needs of a device's memory that are not zero."""
    needs = [Need(what, nbytes(libraries), source) for what, nbytes, source in LIBRARY_NEEDS]
    return [need for need in needs if need.nbytes]


def device_needs(worker: WorkerProgram, device: Device) -> list[Need]:
    """Return a worker's needs on a machine's device: arena, workspace, libraries and reserve."""
    spec = device.spec
    capability = None if spec.compute_capability is None else _capability(spec.compute_capability)
    return [
        arena_need(worker.arena_bytes),
        workspace_need(worker, spec.workspace_bytes),
        *([] if capability is None else library_needs(Libraries(capability))),
        Need("reserve", math.ceil(spec.reserved_bytes), f"the device type {spec.name}"),
    ]


def needed_bytes(worker: WorkerProgram, device: Device) -> int:
    """Return the bytes that a worker needs on its device in all."""
    return sum(need.nbytes for need in device_needs(worker, device))


def arena_need(nbytes: int) -> Need:
    """Return the need of the arena, which holds every buffer."""
    return Need("arena", nbytes, "the program")


def workspace_need(worker: WorkerProgram, limit_bytes: float) -> Need:
    """Return the largest workspace of any kernel, if a kernel may use `limit_bytes`."""
    return Need("workspace", worker_workspace_bytes(worker, limit_bytes), "planner/program/workspace.py")


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
