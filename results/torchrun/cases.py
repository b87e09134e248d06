"""Small modules that are planned and trained, in double precision."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import planner
from planner.graph.ir import Graph
from results.torchrun.ranks import RATE, WAYS
from tests.cross.random_plans import random_plan
from tests.pytorch import models

Made = tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor] | None, tuple[torch.Tensor, ...]]


def _doubled(make: Callable[[], Any]) -> Made:
    module, inputs, loss, targets = make()
    return module.double(), inputs, loss, targets


CASES: Mapping[str, Callable[[], Made]] = {name: partial(_doubled, make) for name, make in models.CASES.items()}
"""Modules by name, each with inputs, loss and targets; made after torch.manual_seed(0)."""


def imported(name: str) -> Graph:
    """Return the training graph of a module, with SGD."""
    torch.manual_seed(0)
    module, inputs, loss, targets = CASES[name]()
    return planner.from_torch(module, inputs, loss=loss, targets=targets, optimizer=planner.Optimizer("sgd", lr=RATE))


def plans(name: str, workers: int, folder: Path) -> list[Path]:
    """Write plans of a module: the one that is found, and one that nobody searched, with all that layouts may be."""
    graph = imported(name)
    made = {
        "searched": planner.plan(graph, workers=workers),
        "random": random_plan(graph, WAYS[workers], random.Random(f"{name} {workers}")),
    }
    paths = []
    for kind, plan in made.items():
        paths.append(folder / f"{name}-{kind}.json")
        plan.save(paths[-1])
    return paths
