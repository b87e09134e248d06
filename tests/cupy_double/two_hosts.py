"""The command as if half the ranks were on another host: python -m tests.cupy_double.two_hosts PLAN ..."""

from executor import shared_memory
from executor.command import execute
from executor.mpi import run_command
from executor.transport import choice, ipc, point_to_point, shared


def half(comm):
    size, rank = comm.Get_size(), comm.Get_rank()
    first = size // 2 * (rank >= size // 2)
    return tuple(range(first, first + size // 2))


if __name__ == "__main__":
    for module in (shared_memory, choice, ipc, point_to_point, shared):
        module.neighbours = half
    run_command(execute)
