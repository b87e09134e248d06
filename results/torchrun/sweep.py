"""Models of the sweep on ranks of torchrun: torchrun --nproc-per-node K -m results.torchrun.sweep FOLDER

FOLDER holds, by the number of ranks, the plan of each model, as `plan FOLDER SEED RANKS...` writes them. Rank 0 prints,
as JSON lines, the losses of every model's steps by AdamW, and whether what was sent in each is what was planned.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits
from torch import nn

import planner
from executor.torch import distribute
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.pytorch import from_torch
from results.experiment import Within, in_fork_within, is_out_of_memory
from results.pytorch_models.sweep import RATE, Batches, Model, double, in_precision, moved

POPULATIONS = {"vision": 4, "language": 8}
"""How many models of each population a sample has."""

WITHIN = Within(600, 8 << 30)
"""What making, importing and planning a model may take of a core and of memory."""

LARGE = ("language-masked-perceiver",)
"""What more than two ranks of a small host have no memory for."""


def models(seed: int = 0) -> Iterator[tuple[str, Model]]:
    """Yield the models of every population in an order by chance, by names of files."""
    for population in POPULATIONS:
        members = list(import_module(f"results.pytorch_models.{population}").models())
        random.Random(seed).shuffle(members)
        for model in members:
            yield f"{population}/{model.name}".replace("/", "-"), model


def module_and_batches(model: Model, plan: Plan) -> tuple[nn.Module, Batches]:
    """Return a model, the same on all ranks, in the precision of its plan."""
    torch.manual_seed(0)
    np.random.seed(0)
    module, batches = model.make()
    module = moved(module)
    if any(tensor.dtype == "float64" for tensor in plan.graph.tensors.values() if tensor.role == "weight"):
        module, batches = module.double(), [double(batch) for batch in batches]
    return module, batches


def planned(folder: Path, seed: int, ranks: tuple[int, ...]) -> None:
    """Write plans of models, each in a process of its own, until there are enough; print what became of every one."""
    left = dict(POPULATIONS)
    for name, model in models(seed):
        population = name.partition("-")[0]
        if left[population]:
            wanted = [workers for workers in ranks if workers <= 2 or name not in LARGE]
            row = in_fork_within(WITHIN, plans, folder, name, model, wanted)
            row = row or {"left out": f"no result: over {WITHIN.memory_bytes >> 30} GB or {WITHIN.seconds} s of a core"}
            left[population] -= "left out" not in row
            print(json.dumps({"model": name} | row), flush=True)


def plans(folder: Path, name: str, model: Model, ranks: Iterable[int]) -> dict[str, Any]:
    """Write a model's plans; return how large they and this process are, or why there are none."""
    torch.manual_seed(0)
    np.random.seed(0)
    try:
        (module, batches, _), _ = in_precision(model, nullcontext())
        graph = from_torch(module, batches[0], optimizer=planner.Optimizer("adamw", lr=RATE, decay=0.01))
        by_ranks = {workers: planner.plan(graph, workers=workers) for workers in ranks}
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return {"left out": f"{type(error).__name__}: {' '.join(str(error)[:200].split())}"}
    for workers, plan in by_ranks.items():
        path = folder / str(workers) / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        plan.save(path)
    return {"nodes": len(graph.nodes), "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}


def trained(model: Model, path: Path) -> dict[str, Any]:
    """Train a model; return the losses, and how many bytes were planned and sent in each step."""
    plan = load_plan(path)
    module, batches = module_and_batches(model, plan)
    training = distribute(module, plan)
    losses, sent = [], []
    for batch in batches:
        losses.append(float(training.step(batch)))
        sent.append([row.tolist() for row in training.trainer.cluster.all_gather(training.sent_bytes)])
    as_planned = all(matrix == plan.bytes.tolist() for matrix in sent)
    dtypes = {tensor.dtype for tensor in plan.graph.tensors.values()}
    kind = "float32" if "float32" in dtypes else "float64"
    return {"losses": losses, "as planned": as_planned, "bytes": plan.total_bytes, "dtype": kind}


def main(folder: Path) -> None:
    """Train every model that has a plan in a folder."""
    dist.init_process_group("gloo")
    plans = folder / str(dist.get_world_size())
    with threadpool_limits(1):
        for name, model in models():
            if (path := plans / f"{name}.json").exists():
                row = {"model": name} | trained(model, path)
                if dist.get_rank() == 0:
                    print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "plan":
        planned(Path(sys.argv[2]), int(sys.argv[3]), tuple(map(int, sys.argv[4:])))
    else:
        main(Path(sys.argv[1]))
