"""The command as if half the ranks were on another host: python -m tests.cupy_double.two_hosts PLAN ..."""

from executor import mpi, shared_memory
from executor.mpi import job_cluster
from executor.transport import gpus, point_to_point, shared
from tensor_partitioner.commands.execute import execute
from tensor_partitioner.commands.on_ranks import command_main


def half(comm):
    size, rank = comm.Get_size(), comm.Get_rank()
    first = size // 2 * (rank >= size // 2)
    return tuple(range(first, first + size // 2))


if __name__ == "__main__":
    for module in (shared_memory, mpi, gpus, point_to_point, shared):
        module.neighbours = half
    command_main(execute, job_cluster())
