"""Training a module with PyTorch, and its imported graph with the executor, from the same values on the same data."""

from __future__ import annotations

import copy

import numpy as np
import torch

from executor.check import relative_difference
from executor.cluster import single_rank
from executor.torch.batches import Batch, array_of
from executor.training import Trainer, rank_programs
from executor.weights import Weights
from planner.graph import Optimizer
from planner.plans.plan import undivided
from planner.pytorch import from_torch
from planner.pytorch.arguments import Arguments
from planner.pytorch.capture.trace import Step

STEPS, RATE = 3, 0.05


def eager_steps(module, inputs, loss=None, targets=(), steps=STEPS):
    """Return losses, and parameters and buffers after some steps of SGD."""
    module = copy.deepcopy(module)
    arguments, optimizer = Arguments(inputs, targets), torch.optim.SGD(module.parameters(), lr=RATE)
    step, losses = Step(module, loss, arguments.structure), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = step(*arguments.values)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, {name: array_of(tensor) for name, tensor in module.state_dict().items()}


def trainer_of(graph, module):
    """Return what trains an imported graph on one worker, from the module's values."""
    trainer = Trainer(rank_programs(undivided(graph), 0, 0), single_rank(1), np, "p2p")
    state = {name: array_of(tensor).copy() for name, tensor in module.state_dict().items()}
    trainer.begin_with(Weights.of(state, graph))
    return trainer


def imported_steps(graph, module, inputs, targets=(), steps=STEPS):
    """Return the same of the imported graph on one worker."""
    trainer, batch, losses = trainer_of(graph, module), Batch(graph, module, inputs, targets), []
    for step in range(steps):
        trainer.load(batch, step)
        trainer.run()
        losses.append(float(trainer.host_copy(graph.metrics["loss"])))
    return losses, {name: trainer.host_copy(name) for name in graph.updates}


def differences(module, inputs, loss=None, targets=(), steps=STEPS):
    """Return the graph, and the largest differences of losses, and of what is kept as parts of the largest element."""
    graph = from_torch(module, inputs, loss=loss, targets=targets, optimizer=Optimizer("sgd", lr=RATE))
    expected_losses, expected = eager_steps(module, inputs, loss, targets, steps)
    losses, tensors = imported_steps(graph, module, inputs, targets, steps)
    gap = max(abs(a - b) / abs(b) for a, b in zip(losses, expected_losses, strict=True))
    kept = expected.keys() & tensors.keys()
    return (
        graph,
        gap,
        {name: relative_difference(tensors[name].reshape(expected[name].shape), expected[name]) for name in kept},
    )


def trained_alike(module, inputs, loss=None, targets=(), *, steps=STEPS, bar=1e-12, of_tensors=None):
    """Return the graph of a module in double precision, whose differences are numbers below `bar` or `of_tensors`."""
    graph, gap, gaps = differences(module.double(), inputs, loss, targets, steps)
    assert gap < bar
    assert all(each < (of_tensors or bar) for each in gaps.values()), gaps
    return graph
