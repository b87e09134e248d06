"""The examples, small and in double precision, plans of them, and ranks that train them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch

import planner
from planner.graph.ir import Graph
from planner.model_source import function_of
from planner.pytorch.tracing import in_order
from planner.pytorch.user_model import UserModel, imported, user_model
from tests.cross.random_plans import random_plan
from tests.pages import ROOT

WAYS = {2: (2,), 4: (2, 2), 8: (2, 2, 2)}
"""How workers are divided, by their number."""

STEPS, RATE = 3, 0.05
EXAMPLES = ROOT / "examples"
CASES = tuple(sorted(path.stem for path in EXAMPLES.glob("*.py") if "def small(" in path.read_text()))
"""Names of the examples that have a small size."""


def made(name: str) -> UserModel:
    """Return an example's module with weights of seed 0, its inputs, loss and targets, and SGD."""
    torch.manual_seed(0)
    found = user_model(function_of(f"{EXAMPLES / name}.py:small")())
    module = found.module.double()
    inputs, targets = map(_doubled, (in_order(found.inputs), found.targets))
    return UserModel(module, inputs, found.loss, targets, torch.optim.SGD(module.parameters(), lr=RATE))


def _doubled(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [one.double() if one.is_floating_point() else one for one in given]


def plans(name: str, workers: int, folder: Path) -> list[Path]:
    """Write plans of an example: the one that is found, and one that nobody searched, with all that layouts may be."""
    graph: Graph = imported(made(name))
    found = {
        "searched": planner.plan(graph, workers=workers),
        "drawn": random_plan(graph, WAYS[workers], random.Random(f"{name} {workers}")),
    }
    paths = []
    for kind, plan in found.items():
        paths.append(folder / f"{name}-{kind}.json")
        plan.save(paths[-1])
    return paths
