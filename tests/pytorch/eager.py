"""Training a module with PyTorch, and its imported graph with the executor, from the same values on the same data."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from executor.cluster import single_rank
from executor.training import Trainer, rank_programs
from planner.graph import Optimizer
from planner.plans.plan import single_worker, undivided
from planner.pytorch import from_torch

STEPS, RATE = 3, 0.05


class Given:
    """A data set of one batch: the example inputs."""

    steps_per_epoch = 1

    def __init__(self, values):
        self.values = values

    def fill(self, xp, out, tile, step):
        out[...] = self.values[tile.tensor.name].reshape(tile.tensor.shape)[np.ix_(*map(_indices, tile.region))]


def _indices(runs):
    return np.concatenate([np.arange(start, stop) for start, stop in runs]) if runs else np.arange(0)


class InDouble(TorchFunctionMode):
    """Within, what a model does in fp32 on purpose it does in fp64, so that rounding hides nothing."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args = [torch.float64 if one is torch.float32 else one for one in args]
        kwargs = {key: torch.float64 if one is torch.float32 else one for key, one in (kwargs or {}).items()}
        return args[0].double() if function is torch.Tensor.float else function(*args, **kwargs)


def _loss(module, inputs, loss, targets):
    result = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    result = result if isinstance(result, torch.Tensor) or loss is not None else result["loss"]
    return result if loss is None else loss(result, *targets)


def eager_steps(module, inputs, loss=None, targets=(), steps=STEPS):
    """Return losses, and parameters and buffers after some steps of SGD."""
    module = copy.deepcopy(module)
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=RATE), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = _loss(module, inputs, loss, targets)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, {name: one.detach().numpy() for name, one in module.state_dict().items()}


def imported_steps(graph, module, values, steps=STEPS):
    """Return the same of the imported graph on one worker."""
    plan = undivided(graph)
    trainer = Trainer(rank_programs(single_worker(plan), 0, 0), single_rank(1), np, "p2p")
    for name, one in module.state_dict().items():
        if name in graph.tensors:
            trainer.view(name)[...] = one.numpy().reshape(graph.tensors[name].shape)
    data, losses = Given(values), []
    for step in range(steps):
        trainer.load(data, step)
        trainer.run()
        losses.append(float(trainer.host_copy(graph.metrics["loss"])))
    found = {name: trainer.host_copy(name) for name in graph.updates}
    return losses, found


def differences(module, inputs, loss=None, targets=(), steps=STEPS):
    """Return the graph, and the largest differences of losses, and of what is kept as parts of the largest element."""
    graph = from_torch(module, inputs, loss=loss, targets=targets, optimizer=Optimizer("sgd", lr=RATE))
    data = [tensor.name for tensor in graph.tensors.values() if tensor.init is not None and tensor.init.kind == "data"]
    given = dict(inputs) if isinstance(inputs, dict) else dict(zip(data, inputs, strict=False))
    given |= dict(zip([name for name in data if name not in given], targets, strict=True))
    values = {name: given[name].numpy() for name in data}
    expected_losses, expected = eager_steps(module, inputs, loss, targets, steps)
    losses, found = imported_steps(graph, module, values, steps)
    gap = max(abs(a - b) / abs(b) for a, b in zip(losses, expected_losses, strict=True))
    worst = {}
    for name, value in expected.items():
        if name not in found:
            continue
        mine = found[name].reshape(value.shape)
        worst[name] = float(np.abs(mine - value).max() / max(np.abs(value).max(), 1e-30))
    return graph, gap, worst
