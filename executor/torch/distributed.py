"""A module of PyTorch trained by a plan, from the ranks' own program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.distributed.tensor import DTensor

from executor.backend import array_module, require_dtypes
from executor.cluster import HostArray
from executor.data import HeldOut, data_tensors
from executor.data.arrays import check_numbers
from executor.process.environment import is_torchrun
from executor.torch.ranks import cluster
from executor.torch.sharded import sharded_state
from executor.torch.state_files import array_of
from executor.torch.tensors import tensor_of
from executor.training import Trainer, rank_programs
from executor.values import Array, ArrayModule, Tile, indices
from executor.weights import Weights
from executor.weights.saving import state_dict
from planner.errors import PlanError
from planner.graph.entries import entries_of, groups
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of
from planner.pytorch.tracing import in_order, names_of

Tensors = torch.Tensor | Sequence[torch.Tensor]
"""One tensor, or several in order."""


def distribute(module: nn.Module, plan: Plan | str | Path, *, prefetch: int = 1) -> Distributed:
    """Return the training of a module by a plan of its graph, on the ranks of the process group (collective).

    Every rank calls it with a module of the same weights, of which it takes its part; the module stays as it is. A
    process that torchrun started need not have made a group. Raises a PlanError for ranks of another number than the
    plan's workers, a WeightsError for a module that was not planned, a BackendError where there is no GPU for it.
    """
    plan = plan_of(plan)
    if not dist.is_initialized():
        if not is_torchrun(os.environ):
            raise PlanError(f"expected {plan.workers} ranks: start them with torchrun --nproc-per-node {plan.workers}")
        dist.init_process_group()
    ranks = cluster()
    if ranks.size != plan.workers:
        raise PlanError(
            f"expected {plan.workers} ranks, one per worker, found {ranks.size}: start them with "
            f"{ranks.launch_advice(plan.workers)}"
        )
    xp = array_module("cupy" if any(parameter.is_cuda for parameter in module.parameters()) else "numpy")
    ranks.use_device(xp)
    require_dtypes(xp, (tensor.dtype for tensor in plan.graph.tensors.values()))
    trainer = Trainer(rank_programs(plan, ranks.rank, prefetch), ranks, xp, ranks.choose_transport("auto", xp))
    trainer.begin_with(Weights.of(_state(module, plan.graph), plan.graph))
    return Distributed(trainer, module)


def _state(module: nn.Module, graph: Graph) -> dict[str, HostArray]:
    """Return a module's state dict; what no tensor holds is needed to the end, and copied."""
    state = {name: array_of(tensor.cpu()) for name, tensor in module.state_dict().items()}
    held = {name for name, entry in entries_of(graph).items() if entry.tensor}
    return {name: array if name in held else array.copy() for name, array in state.items()}


class Distributed:
    """A module's training, of which this rank has its part; every method is collective."""

    def __init__(self, trainer: Trainer, module: nn.Module) -> None:
        self.trainer = trainer
        self._module = module
        self.steps = 0
        self.sent_bytes: NDArray[np.int64] = np.zeros(trainer.cluster.size, np.int64)
        """What this rank sent to every other in the last step."""

    @property
    def rank(self) -> int:
        """Which worker of the plan this rank is."""
        return self.trainer.cluster.rank

    def step(self, inputs: Tensors | Mapping[str, torch.Tensor], targets: Tensors = ()) -> torch.Tensor:
        """Train one step on the whole batch, of which each rank reads its part; return the loss, a scalar.

        Inputs and targets are as the module was planned with, inputs in order or by name. Raises ValueError for tensors
        of other shapes, DataError for labels that are no classes.
        """
        self.trainer.load(Batch(self.trainer.graph, self._module, inputs, targets), self.steps)
        _, self.sent_bytes = self.trainer.run()
        self.steps += 1
        graph, name = self.trainer.graph, self.trainer.graph.metrics["loss"]
        loss = self.trainer.whole(name)
        value = self.trainer.cluster.broadcast(None if loss is None else float(loss.sum()))
        return torch.tensor(value, dtype=getattr(torch, graph.tensors[name].dtype))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return, on rank 0, what the module's `load_state_dict` takes; nothing elsewhere."""
        return {name: tensor_of(array) for name, array in state_dict(self.trainer, self.steps).items()}

    def sharded_state_dict(self) -> Mapping[str, DTensor]:
        """Return this rank's part of every weight as a DTensor in the memory that is trained; see `sharded_state`."""
        return sharded_state(self.trainer)


class Batch:
    """One batch as a data set: the whole tensors by the names of the graph's inputs."""

    identity, steps_per_epoch = "tensors", 1
    held_out: HeldOut | None = None

    def __init__(
        self, graph: Graph, module: nn.Module, inputs: Tensors | Mapping[str, torch.Tensor], targets: Tensors
    ) -> None:
        """Take what a module is called with, and the targets of its loss."""
        inputs, targets = (inputs if isinstance(inputs, Mapping) else _listed(inputs)), _listed(targets)
        names = names_of(module, inputs, len(targets))
        tensors = dict(zip(names, (*in_order(inputs), *targets), strict=True))
        self._whole: dict[str, HostArray] = {}
        for tensor in data_tensors(graph):
            if tensor.name not in tensors:
                raise ValueError(f"expected a tensor {tensor.name}, found {', '.join(tensors) or 'none'}")
            array = array_of(tensors[tensor.name].cpu())
            if groups(array.shape, tensor.shape) is None:
                raise ValueError(f"{tensor.name}: expected shape {list(tensor.shape)}, found {list(array.shape)}")
            if tensor.dtype == "int32":
                check_numbers(tensor.name, tensor, array)
            self._whole[tensor.name] = array.reshape(tensor.shape)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        part = self._whole[tile.tensor.name][np.ix_(*map(indices, tile.region))]
        out[...] = xp.asarray(part.astype(tile.tensor.dtype))


def _listed(tensors: Tensors) -> Sequence[torch.Tensor]:
    return (tensors,) if isinstance(tensors, torch.Tensor) else tensors
