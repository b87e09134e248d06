"""Plans are read and lowered once, by rank 0, which gives every rank its own worker's program.

Lowering is for all workers at once, so that every rank doing it would do k times the work, on a host often with fewer
cores than ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from executor.cluster import Cluster
from executor.launch import agreed
from executor.training import Part, Programs

T = TypeVar("T")


def from_first_rank(cluster: Cluster, prepare: Callable[[], T]) -> T:
    """Run `prepare` on rank 0 and return its result on every rank; its failure is every rank's SharedError."""
    found = agreed(cluster, lambda: prepare() if cluster.rank == 0 else None)
    return cluster.tell(found)


def programs_from_first_rank(cluster: Cluster, prepare: Callable[[], Programs]) -> tuple[Programs | None, Part]:
    """Lower on rank 0; return there the programs of all workers, and on every rank that rank's part of them."""
    found = agreed(cluster, lambda: prepare() if cluster.rank == 0 else None)
    return found, cluster.deal(None if found is None else [found.part(rank) for rank in range(cluster.size)])
