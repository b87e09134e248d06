"""Plans of data parallelism move, to the byte, what PyTorch's DistributedDataParallel and FSDP2 move."""

import pytest

pytest.importorskip("torch")

import planner
from planner.plans.sharded import shard_data_parallel
from tests.executor_torch.counted import batch, bytes_moved, module


def planned(ranks):
    model, inputs = module(), batch(2 * ranks)
    graph = planner.from_torch(model, inputs, optimizer=planner.Optimizer("sgd"))
    plan = planner.plan(graph, ways=(ranks,), searcher="data-parallel", placements="S,R")
    reported = 2 * (ranks - 1) * graph.tensors[graph.metrics["loss"]].nbytes  # the mean loss, that nobody reduces there
    return plan, reported, sum(weight.nbytes for weight in model.parameters())


@pytest.mark.parametrize("ranks", [2, 4])
def test_data_parallelism_moves_what_pytorch_moves(ranks, tmp_path):
    """FSDP2's modules free their weights after the forward pass, the outermost one, too."""
    plan, reported, weights = planned(ranks)
    moved = bytes_moved(ranks, tmp_path)
    assert plan.total_bytes - reported == moved["ddp"] == 2 * (ranks - 1) * weights
    assert shard_data_parallel(plan, 3).total_bytes - reported == moved["fsdp2"] == 3 * (ranks - 1) * weights
