"""What one step of a plan asks of a device: launches, waits of the host, and bytes beside the arena, on the double."""

from collections import Counter
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


def counted(plan, library="arrays"):
    """Count one step, after a first one in which everything that is made once is made."""
    with cupy_double.installed() as cupy:
        memory = cupy._memory
        trainer = Trainer(rank_programs(plan, 0), replace(single_rank(2), library=library), cupy, "p2p")
        trainer.load(DATA_SETS["random"](plan.graph, plan.seed), 0)
        trainer.run()
        launches, waits = memory.LAUNCHES.copy(), memory.WAITS.copy()
        before = memory.POOL["peak"] = memory.POOL["bytes"]
        with of_torch() if library == "torch" else Nothing() as ops:
            trainer.run()
        return Counted(
            memory.LAUNCHES - launches + ops.launches,
            memory.WAITS - waits + ops.waits,
            memory.POOL["peak"] - before + ops.peak_bytes,
            trainer.arena.nbytes,
        )


class Nothing:
    """Counts nothing: PyTorch computes nothing."""

    launches, waits, peak_bytes = Counter(), Counter(), 0

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass


def of_torch():
    """Count what PyTorch does in a `with` block."""
    from tests.cupy_double.torch_operators import Operators

    return Operators()
