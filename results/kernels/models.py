"""A training step of a model on one rank, and the same step in PyTorch on the same weights and inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import planner
from executor.cluster import single_rank
from executor.data import Random
from executor.training import Trainer, rank_programs
from planner.graph.ir import Graph
from results.kernels.timing import Function
from results.kernels.twins import TWINS

MODELS: dict[str, dict[str, Any]] = {
    "cnn-5-64": {"batch": 64, "image": 32},
    "transformer-12-768": {"batch": 2, "sequence": 128},
    "wresnet-50-1": {"batch": 64, "image": 32},
    "wresnet-14-2": {"batch": 64, "image": 8, "channels": 1, "classes": 10},
    "mlp-4-2048": {"batch": 512},
    "rnn-2-512": {"batch": 64},
}


def steps(name: str) -> tuple[Function, Function]:
    """Return our step and PyTorch's, with its SGD; raises where the first losses differ."""
    graph = planner.model(name, **MODELS[name])
    trainer = Trainer(rank_programs(planner.plan(graph, 1), 0), single_rank(1), np, "p2p")
    trainer.load(Random(graph, 0), 0)
    theirs = _pytorch(name, graph, trainer)
    trainer.run()
    loss, expected = float(trainer.view(graph.metrics["loss"]).sum()), theirs()
    if not math.isclose(loss, expected, rel_tol=1e-4):
        raise ValueError(f"{name}: expected the loss {expected}, found {loss}")
    return trainer.run, theirs


def _pytorch(name: str, graph: Graph, trainer: Trainer) -> Callable[[], float]:
    given = {tensor.name: tensor.role for tensor in graph.tensors.values() if tensor.init is not None}
    values = {name: torch.tensor(np.array(trainer.view(name))) for name in given}
    weights = {name: values[name].requires_grad_() for name, role in given.items() if role == "weight"}
    inputs = {name: values[name] for name, role in given.items() if role == "input"}
    optimizer = torch.optim.SGD(list(weights.values()), lr=0.01, momentum=0.9)
    forward = TWINS[name.split("-", maxsplit=1)[0]]

    def step() -> float:
        optimizer.zero_grad()
        loss, _ = forward(weights, inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    return step
