"""Plans are read and lowered once, by rank 0, which gives every rank its own worker's program.

Lowering is for all workers at once, so that every rank doing it would do k times the work, on a host often with fewer
cores than ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, overload

from executor.cluster import Cluster
from executor.launch import agreed
from executor.training import Programs
from planner.program.tasks import Program, WorkerProgram

T = TypeVar("T")


class OwnProgram(Sequence[WorkerProgram]):
    """The programs of all workers as one rank has them: its own alone. Asking for another is a LookupError."""

    def __init__(self, own: WorkerProgram, workers: int) -> None:
        self._own = own
        self._workers = workers

    def __len__(self) -> int:
        return self._workers

    @overload
    def __getitem__(self, worker: int) -> WorkerProgram: ...

    @overload
    def __getitem__(self, worker: slice) -> Sequence[WorkerProgram]: ...

    def __getitem__(self, worker: int | slice) -> WorkerProgram | Sequence[WorkerProgram]:
        if worker != self._own.worker:
            raise LookupError(f"expected worker {self._own.worker}, whose program this rank has, found {worker}")
        return self._own


def from_first_rank(cluster: Cluster, prepare: Callable[[], T]) -> T:
    """Run `prepare` on rank 0 and return its result on every rank; its failure is every rank's SharedError."""
    found = agreed(cluster, lambda: prepare() if cluster.rank == 0 else None)
    return cluster.tell(found)


def programs_from_first_rank(cluster: Cluster, prepare: Callable[[], Programs]) -> Programs:
    """Lower on rank 0; return there all workers' programs, and on any other rank that rank's own."""
    found = agreed(cluster, lambda: prepare() if cluster.rank == 0 else None)
    parts = None if found is None else [_part(found, rank) for rank in range(cluster.size)]
    own = cluster.deal(parts)
    return own if found is None else found


def _part(programs: Programs, rank: int) -> Programs:
    evaluation = programs.evaluation
    return replace(
        programs,
        training=_own(programs.training, rank),
        evaluation=None if evaluation is None else _own(evaluation, rank),
    )


def _own(program: Program, rank: int) -> Program:
    return replace(program, workers=OwnProgram(program.workers[rank], len(program.workers)))
