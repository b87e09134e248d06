"""Steps of ours, DTensor and DDP, in turns: torchrun --nproc-per-node 2 -m results.torchrun.speed ROUNDS PLAN...

All three train the same module (`MODELS`) by SGD over gloo, ranks of one thread. DTensor splits layers by columns and
rows in turn, as PyTorch's own examples do, DDP the batch. Rank 0 prints, as JSON, the median seconds of the slower
rank, and of ours the bytes that were planned and sent.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from executor.torch import distribute
from planner.plans.plan_json import load_plan
from results.torchrun.models import MODELS, RATE, Model, Step, of_all, trained

WARM_UP = 3
CLOSE = 1e-3


def by_torch(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    """Return a step of a module by SGD."""
    return trained(module, torch.optim.SGD(module.parameters(), lr=RATE), inputs, targets)


def dtensor(model: Model) -> Step:
    """Return a step of PyTorch's tensor parallelism."""
    module = copy.deepcopy(model.module)
    styles: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in model.by_columns}
    styles |= {name: RowwiseParallel() for name in model.by_rows}
    parallelize_module(module, init_device_mesh("cpu", (dist.get_world_size(),)), styles)
    return by_torch(module, model.inputs, model.targets)


def ddp(model: Model) -> Step:
    """Return a step of PyTorch's data parallelism, each rank with its part of the batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    module = DistributedDataParallel(copy.deepcopy(model.module))
    return by_torch(module, model.inputs.chunk(size)[rank], model.targets.chunk(size)[rank])


def measured(path: Path, rounds: int) -> dict[str, Any]:
    """Measure the steps of the model whose plan this is; raise ValueError where the first losses are not the same."""
    torch.manual_seed(0)
    model, plan = MODELS[path.stem](), load_plan(path)
    ours = distribute(model.module, plan)
    steps: dict[str, Step] = {
        "ours": lambda: ours.step(model.inputs, model.targets),
        "DTensor": dtensor(model),
        "DDP": ddp(model),
    }
    seconds: dict[str, list[float]] = {side: [] for side in steps}
    first: dict[str, float] = {}
    for _ in range(WARM_UP + rounds):
        for side, step in steps.items():
            dist.barrier()
            started = time.perf_counter()
            loss = step()
            seconds[side].append(of_all(time.perf_counter() - started, dist.ReduceOp.MAX))
            first.setdefault(side, of_all(float(loss)) / dist.get_world_size())
    if max(first.values()) - min(first.values()) > CLOSE:
        raise ValueError(f"{path.stem}: expected the same first loss of all, found {first}")
    sent = torch.from_numpy(ours.sent_bytes).sum()
    dist.all_reduce(sent)
    return {
        "seconds": {side: round(median(values[WARM_UP:]), 5) for side, values in seconds.items()},
        "planned": plan.total_bytes,
        "sent": int(sent),
        "loss": first["ours"],
    }


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rounds, paths = int(sys.argv[1]), [Path(path) for path in sys.argv[2:]]
    with threadpool_limits(1):
        by_model = {path.stem: measured(path, rounds) for path in paths}
    if dist.get_rank() == 0:
        print(json.dumps(by_model))
    dist.destroy_process_group()
