"""Plans of data parallelism move, to the byte, what PyTorch's DistributedDataParallel and FSDP2 move."""

import pytest

pytest.importorskip("torch")

import planner
from tests.executor_torch.counted import batch, bytes_moved, module


def planned(ranks):
    model, inputs = module(), batch(2 * ranks)
    graph = planner.from_torch(model, inputs, optimizer=planner.Optimizer("sgd"))
    plans = [planner.plan(graph, parallel=f"dp={ranks}{zero}") for zero in ("", ",zero=3")]
    reported = 2 * (ranks - 1) * graph.tensors[graph.metrics["loss"]].nbytes  # the mean loss, that nobody reduces there
    return plans, reported, sum(weight.nbytes for weight in model.parameters())


@pytest.mark.parametrize("ranks", [2, 4])
def test_data_parallelism_moves_what_pytorch_moves(ranks, tmp_path):
    """FSDP2's modules free their weights after the forward pass, the outermost one, too."""
    plans, reported, weights = planned(ranks)
    moved, (plain, sharded) = bytes_moved(ranks, tmp_path), (plan.total_bytes - reported for plan in plans)
    assert plain == moved["ddp"] == 2 * (ranks - 1) * weights
    assert sharded == moved["fsdp2"] == 3 * (ranks - 1) * weights
