"""Memory shared by processes of one machine: anonymous files, opened through /proc.

They use no space in /dev/shm, which is often small in containers, and vanish with the last process that maps them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
SEGMENT = "/dev/shm/mpich_shm_"
"""Start of the names of segments that MPICH itself makes."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where other processes find a block. Device and inode detect that the descriptor was reused."""

    process: int
    descriptor: int
    nbytes: int
    device: int
    inode: int


class Block:
    """Zeroed memory of this process that others may map until it is closed. Existing mappings stay valid."""

    def __init__(self, nbytes: int) -> None:
        descriptor = os.memfd_create("ranks")
        os.ftruncate(descriptor, max(1, nbytes))
        status = os.fstat(descriptor)
        self.address = Address(os.getpid(), descriptor, nbytes, status.st_dev, status.st_ino)
        self.bytes = _mapped(descriptor, nbytes)

    def close(self) -> None:
        """Prevent further mappings."""
        os.close(self.address.descriptor)


def map_memory(address: Address) -> Bytes:
    """Map another process's block. Raises OSError if the system forbids it."""
    path = f"/proc/{address.process}/fd/{address.descriptor}"
    descriptor = os.open(path, os.O_RDWR)
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (address.device, address.inode):
            raise OSError(f"{path}: expected another process's memory, found another file")
        return _mapped(descriptor, address.nbytes)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, nbytes: int) -> Bytes:
    return np.frombuffer(mmap.mmap(descriptor, max(1, nbytes)), np.uint8, nbytes)


def unlink_segments(comm: MPI.Intracomm) -> None:
    """Remove the names of MPICH's segments, so that they vanish with their last rank, however it ends (collective)."""
    comm.Barrier()  # every rank has opened them
    for line in Path("/proc/self/maps").read_text().splitlines():
        if SEGMENT in line:
            Path(line.split(maxsplit=5)[-1]).unlink(missing_ok=True)


def neighbours(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Return the ranks on this rank's host, including itself, ascending (collective)."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks: tuple[int, ...] = tuple(sorted(host.allgather(comm.Get_rank())))
    host.Free()
    return ranks


def exchanged(comm: MPI.Intracomm, ranks: tuple[int, ...], nbytes: int) -> tuple[Bytes, Mapping[int, Bytes]]:
    """Create a block of this rank; return its bytes and those of the other `ranks` of its host (collective).

    Raises OSError if a block cannot be mapped.
    """
    block = Block(nbytes)
    addresses: list[Address] = comm.allgather(block.address)
    me = comm.Get_rank()
    others = {rank: map_memory(addresses[rank]) for rank in ranks if rank != me}
    comm.Barrier()
    block.close()
    return block.bytes, others


def obstacle(comm: MPI.Intracomm, ranks: tuple[int, ...]) -> str | None:
    """Return why some rank cannot map another's memory on its host; None if all can (collective)."""
    block, error_text = None, None
    try:
        block = Block(1)
    except (AttributeError, OSError) as error:
        error_text = str(error)
    addresses = comm.allgather(None if block is None else block.address)
    try:
        for rank in ranks:
            if addresses[rank] is not None:
                map_memory(addresses[rank])
    except OSError as error:
        error_text = f"rank {comm.Get_rank()} cannot map memory of another: {error}"
    reason = first_reason(comm, error_text)
    if block is not None:
        block.close()
    return reason


def first_reason(comm: MPI.Intracomm, reason: str | None) -> str | None:
    """Return the first rank's reason against something; None if no rank has any (collective)."""
    return next((text for text in comm.allgather(reason) if text is not None), None)
