"""What one step of a plan asks of a device: launches, waits of the host, and bytes beside the arena, on the double."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace

from executor.cluster import single_rank
from executor.data import DATA_SETS
from executor.training import Trainer, rank_programs
from tests import cupy_double


@dataclass(frozen=True)
class Counted:
    """Launches and waits by name, and bytes of arrays beside the arena at their peak."""

    launches: Counter
    waits: Counter
    pool_bytes: int
    arena_bytes: int


def counted(plan, library, operators=None):
    """Count a step; `operators` counts what PyTorch does, within a `with` block."""
    with cupy_double.installed() as cupy:
        memory = cupy._memory
        trainer = Trainer(rank_programs(plan, 0), replace(single_rank(2), library=library), cupy, "p2p")
        trainer.load(DATA_SETS["random"](plan.graph, plan.seed), 0)
        launches, waits = memory.LAUNCHES.copy(), memory.WAITS.copy()
        before = memory.POOL["peak"] = memory.POOL["bytes"]
        with nullcontext() if operators is None else operators:
            trainer.run()
        arrays = memory.LAUNCHES - launches, memory.WAITS - waits, memory.POOL["peak"] - before
        if operators is None:
            return Counted(*arrays, trainer.arena.nbytes)
        both = arrays[0] + operators.launches, arrays[1] + operators.waits, arrays[2] + operators.peak_bytes
        return Counted(*both, trainer.arena.nbytes)
