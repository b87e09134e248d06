"""One process that trains plans, and what data sets show of a tensor."""

import numpy as np

from executor.backend import asnumpy
from executor.cluster import single_rank
from executor.data import Random
from executor.training import Trainer, rank_programs
from executor.values import Tile
from planner.layout import local_shape
from planner.layout.region import whole
from tensor_partitioner.commands.execute import execute


def trained(plan, steps, evaluate=None):
    """A trainer after some steps on random data."""
    trainer = Trainer(rank_programs(plan, 0, evaluate=evaluate), single_rank(1), np, "p2p")
    for step in range(steps):
        trainer.load(Random(plan.graph, plan.seed), step)
        trainer.run()
    return trainer


def run(*arguments):
    """The command `execute` on one rank: its exit status."""
    line = [*map(str, arguments), "--backend", "numpy"]
    return execute.main(args=line, prog_name="execute", standalone_mode=False, obj=single_rank(1))


def get(data, tensor, step=0, region=None, xp=np, *, micro_batch=0):
    """A region of an input of a micro-batch at a step, on the host."""
    region = whole(tensor.shape) if region is None else region
    out = xp.empty(local_shape(region), tensor.dtype)
    data.fill(xp, out, Tile(tensor, region, micro_batch * tensor.shape[0]), step)
    return asnumpy(out)


def index_of(region):
    """What takes a region out of a whole array."""
    return np.ix_(*[[n for run in runs for n in range(*run)] for runs in region])
