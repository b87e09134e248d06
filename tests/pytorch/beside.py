"""An example trained by the program of a plan, all workers in one process, and by PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import planner
from executor.check import relative_difference
from executor.torch.distributed import Batch
from executor.torch.state_files import array_of
from executor.values import Tile
from executor.weights import Weights
from planner.graph import Graph
from planner.layout import local_shape
from planner.model_source import function_of
from planner.plans.plan import Plan, undivided
from planner.pytorch.tracing import in_order
from planner.pytorch.user_model import UserModel, imported, user_model
from tests.cross.loopback import Loopback
from tests.pages import ROOT

STEPS = 3
SGD, ADAM = "SGD", "Adam"
RATES = {SGD: 0.05, ADAM: 1e-3}
NOISE = {"float64": 1e-10, "float32": 1e-4}
"""A gradient that is this small a part of the largest of all is taken for rounding: in exact arithmetic it is zero."""


@dataclass(frozen=True, slots=True)
class Case:
    """An example, how many workers train it, in which dtype, and by which optimizer."""

    name: str
    workers: int
    dtype: str
    optimizer: str


@dataclass(frozen=True, slots=True)
class Found:
    """How far losses are from PyTorch's, and what training changed, by entry; `told` have gradients above rounding."""

    loss: float
    entries: Mapping[str, float]
    told: frozenset[str]

    @property
    def worst(self) -> float:
        """The largest difference of all entries."""
        return max(self.entries.values())

    @property
    def worst_told(self) -> float:
        """The largest difference of the parameters whose gradients are above rounding."""
        return max(self.entries[name] for name in self.told)


class Imported(Loopback):
    """All workers of a plan in one process, from a module's weights, on its example inputs."""

    def __init__(self, plan: Plan, made: UserModel) -> None:
        state = {name: array_of(one).copy() for name, one in made.module.state_dict().items()}
        self.weights = Weights.of(state, plan.graph)
        self.batch = Batch.of(plan.graph, made.module, made.inputs, made.targets)
        super().__init__(plan, planner.lower(plan))

    def fill(self, name: str) -> None:
        """Give a tensor its value on every worker."""
        tensor = self.plan.graph.tensors[name]
        is_data = tensor.init.kind == "data"
        if not is_data and name not in self.weights:
            super().fill(name)
            return
        for worker, region in enumerate(self.program.regions[name]):
            target = self.array(worker, self.program.tensors[name])
            tile: NDArray[Any] = np.empty(local_shape(region), tensor.dtype)
            if is_data:
                self.batch.fill(np, tile, Tile(tensor, region), self.iteration)
            else:
                tile = self.weights.tile(tensor, region)
            target[...] = tile.reshape(target.shape)


def made_of(case: Case) -> UserModel:
    """Return an example in its small size, in a dtype, with an optimizer."""
    torch.manual_seed(0)
    made = user_model(function_of(f"{ROOT}/examples/{case.name}.py:small")())
    real = {"float64": torch.float64, "float32": torch.float32}[case.dtype]

    def converted(given: Any) -> list[torch.Tensor]:
        return [one.to(real) if one.is_floating_point() else one for one in given]

    module, kind = made.module.to(real), {SGD: torch.optim.SGD, ADAM: torch.optim.Adam}[case.optimizer]
    optimizer: Any = kind(module.parameters(), lr=RATES[case.optimizer])
    inputs, targets = converted(in_order(made.inputs)), converted(made.targets)
    return made._replace(module=module, inputs=inputs, targets=targets, optimizer=optimizer)


def eager(made: UserModel) -> list[float]:
    """Train the module; return its losses."""
    losses = []
    for _ in range(STEPS):
        made.optimizer.zero_grad()
        result = made.module(*in_order(made.inputs))
        loss = result if made.loss is None else made.loss(result, *made.targets)
        loss.backward()
        made.optimizer.step()
        losses.append(float(loss.item()))
    return losses


def planned(graph: Graph, workers: int) -> Plan:
    """Return a plan; for one worker the only one."""
    if workers > 1:
        return planner.plan(graph, workers)
    return undivided(graph)


def compared(case: Case) -> Found:
    """Train an example both ways."""
    made = made_of(case)
    graph = imported(made)
    loop, losses = Imported(planned(graph, case.workers), made), []
    for _ in range(STEPS):
        loop.step()
        losses.append(float(loop.gather(graph.metrics["loss"])))
    expected = eager(made)
    apart = {}
    for name, one in made.module.state_dict().items():
        tensor = graph.entries[name].tensor
        if tensor is not None:
            apart[name] = relative_difference(loop.gather(tensor).reshape(one.shape), array_of(one))
    sizes = {name: float(one.grad.abs().max()) for name, one in made.module.named_parameters() if one.grad is not None}
    told = frozenset(name for name, size in sizes.items() if size > NOISE[case.dtype] * max(sizes.values()))
    gap = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    return Found(gap, apart, told)
