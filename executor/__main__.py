"""`python -m executor`: the command `execute`, on the ranks of whoever starts it, torchrun or an MPI's mpirun."""

from tensor_partitioner.commands.entry import execute

if __name__ == "__main__":
    execute()
