"""`python -m executor`: the command `execute`, on ranks started by torchrun or mpirun."""

from tensor_partitioner.commands.entry import execute

if __name__ == "__main__":
    execute()
