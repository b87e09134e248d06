"""Steps of a perceptron on two ranks: mpirun -n 2 python -m results.transports.mlp PLAN ROUNDS; rank 0 prints JSON.

Four take turns, a step each: the plan as executed, the same written by hand (by_hand.py), its matrix products alone,
and PyTorch's tensor parallelism over gloo. Seconds are the slower rank's, the median round's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from executor.process.environment import choose_blas

choose_blas()  # before NumPy is loaded, as the command `execute` does

import numpy as np  # noqa: E402
import torch  # noqa: E402
from mpi4py import MPI  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import destroy_process_group, init_process_group  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from executor.cluster import Cluster  # noqa: E402
from executor.data import Random  # noqa: E402
from executor.mpi import job_cluster  # noqa: E402
from executor.process.launch import job_main  # noqa: E402
from executor.training import Trainer, rank_programs  # noqa: E402
from planner.plans.plan_json import load_plan  # noqa: E402
from results.transports.by_hand import ByHand  # noqa: E402

LAYERS = ("fc1", "fc2", "fc3", "fc4")
WARM_UP = 3
PORT = 29517


def dtensor(shape: tuple[int, int], rates: tuple[float, float]) -> Callable[[], object]:
    """Return a step of PyTorch's, layers split by columns and rows in turn."""
    batch, width = shape
    torch.set_num_threads(1)
    init_process_group("gloo")
    model = nn.Sequential()
    styles: dict[str, ParallelStyle] = {}
    for number, name in enumerate(LAYERS):
        model.add_module(name, nn.Linear(width, width, bias=False))
        if name != LAYERS[-1]:
            model.add_module(f"relu{number}", nn.ReLU())
        styles[name] = RowwiseParallel() if number % 2 else ColwiseParallel()
    parallelize_module(model, init_device_mesh("cpu", (2,)), styles)
    optimizer = torch.optim.SGD(model.parameters(), lr=rates[0], momentum=rates[1])
    images, labels = torch.rand(batch, width), torch.randint(width, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def main(ranks: Cluster) -> int:
    """Measure all four."""
    plan, rounds = load_plan(Path(sys.argv[1])), int(sys.argv[2])
    update = next(node for node in plan.graph.nodes if node.op == "sgd_momentum")
    rates = float(update.attrs["lr"]), float(update.attrs["momentum"])  # type: ignore[arg-type]
    trainer, data = Trainer(rank_programs(plan, ranks.rank), ranks, np, "shared"), Random(plan.graph, plan.seed)
    trainer.load(data, 0)
    images = trainer.view("images")
    weights = [trainer.view(f"{name}.w") for name in LAYERS]
    hand = ByHand(ranks.comm, weights, images, trainer.view("labels"), rates)
    alone = ByHand(ranks.comm, weights, images, trainer.view("labels"), rates)
    steps: dict[str, Callable[[], object]] = {
        "executed": trainer.worker.run,
        "by hand": hand.step,
        "its products": alone.multiply,
        "DTensor": dtensor(images.shape, rates),
    }
    measured: dict[str, list[float]] = {name: [] for name in steps}
    with threadpool_limits(1), np.errstate(all="ignore"):
        agree(ranks, trainer, hand)
        for _ in range(WARM_UP + rounds):
            for name, step in steps.items():
                ranks.barrier()
                started = time.perf_counter()
                step()
                measured[name].append(max(ranks.all_gather(time.perf_counter() - started)))
    destroy_process_group()
    if ranks.rank == 0:
        print(json.dumps({name: round(median(seconds[WARM_UP:]), 5) for name, seconds in measured.items()}))
    return 0


def agree(ranks: Cluster, trainer: Trainer, hand: ByHand) -> None:
    """Take a step of ours and one by hand; raise ValueError where they do not compute the same loss."""
    trainer.worker.run()
    loss = trainer.whole(trainer.graph.metrics["loss"])
    parts = ranks.gather(hand.step())
    if loss is not None and not np.isclose(float(loss.sum()), sum(parts), rtol=1e-4):
        raise ValueError(f"expected the loss {float(loss.sum())} by hand, too, found {sum(parts)}")


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT))
    os.environ.update(RANK=str(MPI.COMM_WORLD.Get_rank()), WORLD_SIZE=str(MPI.COMM_WORLD.Get_size()))
    job_main(main, job_cluster())
