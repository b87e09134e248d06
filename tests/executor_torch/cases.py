"""The examples, small and in double precision, plans of them, and ranks that train them."""

from __future__ import annotations

import random
from pathlib import Path

import torch

import planner
from planner.parallel import RECOMPUTE, Parallel
from planner.pytorch.arguments import Arguments
from planner.pytorch.user_model import UserModel, imported, in_parts
from tests.cross.random_plans import random_plan
from tests.pytorch.eager import RATE
from tests.pytorch.models import CASES

WAYS = {2: (2,), 4: (2, 2), 8: (2, 2, 2)}
"""How workers are divided, by their number."""


def user_model(name: str) -> UserModel:
    """Return an example's module with weights of seed 0, its inputs, loss and targets, and SGD."""
    torch.manual_seed(0)
    module, inputs, loss, targets = CASES[name]()
    module.double()
    return UserModel(module, inputs, loss, targets, torch.optim.SGD(module.parameters(), lr=RATE))


def plans(name: str, workers: int, folder: Path) -> list[Path]:
    """Write plans of an example: the one that is found, and one that nobody searched, with all that layouts may be."""
    graph = imported(user_model(name))
    drawn = random_plan(graph, WAYS[workers], random.Random(f"{name} {workers}"))
    paths = []
    for kind, plan in (("searched", planner.plan(graph, workers=workers)), ("drawn", drawn)):
        paths.append(folder / f"{name}-{kind}.json")
        plan.save(paths[-1])
    return paths


def stages(name: str, workers: int, folder: Path) -> Path:
    """Write a plan of an example in two stages."""
    path = folder / f"{name}-stages.json"
    planner.plan(imported(user_model(name)), workers=workers, stages=2).save(path)
    return path


def cut(name: str, parallel: str, folder: Path) -> Path:
    """Write a plan of an example that is cut and computes again as named parallelism says."""
    path, model = folder / f"{name}-cut.json", user_model(name)
    read = Parallel.read(parallel)
    count = read.micro_batches(len(Arguments(model.inputs).values[0]))
    graph = imported(in_parts(model, count)[0], micro_batches=count, recompute=RECOMPUTE[read.recompute])
    planner.plan(graph, parallel=read).save(path)
    return path
