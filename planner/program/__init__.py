"""Programs: the tasks of every worker in one training iteration, lowered from a plan; and their tables."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from planner.program.tasks import Program
from tensor_partitioner import display
from tensor_partitioner.display import exact_bytes, grid, table


@display.tables.register
def program_tables(program: Program) -> tuple[Table]:
    """Return the tables of a program: its tasks by kind, and each worker's buffers, arena and bytes."""
    kinds = Counter(type(task).__name__ for task in program.workers[0].tasks)
    tasks = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    title = f"program for {grid(program.ways)} workers: {tasks}"
    rows = [
        [
            str(worker.worker),
            str(len(worker.buffers)),
            *map(exact_bytes, (worker.arena_bytes, int(sent), int(received))),
        ]
        for worker, sent, received in zip(program.workers, program.bytes.sum(1), program.bytes.sum(0), strict=True)
    ]
    return (table(title, ["worker", "buffers", "arena bytes", "bytes sent", "bytes received"], rows),)


__all__ = ["tables"]  # importing it registers the tables of programs
