"""A module of PyTorch trained by a plan, from the ranks' own program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.distributed.tensor import DTensor

from executor.backend import array_module, require_dtypes
from executor.cluster import HostArray
from executor.data import HeldOut
from executor.data.base import source_name, whole_inputs
from executor.environment import by_torchrun
from executor.torch.ranks import cluster
from executor.torch.sharded import sharded_state
from executor.torch.state_files import array_of
from executor.training import Trainer, part_of
from executor.values import Array, ArrayModule, Tile, indices, rows
from executor.weights import Weights
from executor.weights.saving import state_dict
from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of

Tensors = torch.Tensor | Sequence[torch.Tensor]


def distribute(module: nn.Module, plan: Plan | str | Path, *, prefetch: int = 1) -> Distributed:
    """Return the training of a module by a plan of its graph, on the ranks of the process group (collective).

    Every rank calls it with a module of the same weights, of which it takes its part; the module stays as it is. A
    process that torchrun started need not have made a group. Raises a PlanError for ranks of another number than the
    plan's workers, a WeightsError for a module that was not planned, a BackendError where there is no GPU for it.
    """
    plan = plan_of(plan)
    if not dist.is_initialized():
        if not by_torchrun(os.environ):
            raise PlanError(f"expected {plan.workers} ranks: start them with torchrun --nproc-per-node {plan.workers}")
        dist.init_process_group()
    ranks = cluster()
    if ranks.size != plan.workers:
        raise PlanError(
            f"expected {plan.workers} ranks, one per worker, found {ranks.size}: start them with "
            f"{ranks.started(plan.workers)}"
        )
    xp = array_module("cupy" if any(one.is_cuda for one in module.parameters()) else "numpy")
    ranks.use_device(xp)
    require_dtypes(xp, (tensor.dtype for tensor in plan.graph.tensors.values()))
    trainer = Trainer(part_of(plan, ranks.rank, prefetch), ranks, xp, ranks.chosen("auto", xp))
    state = {name: array_of(one.cpu()).copy() for name, one in module.state_dict().items()}
    trainer.begin_with(Weights.of(state, plan.graph))
    return Distributed(trainer)


class Distributed:
    """A module's training, of which this rank has its part; every method is collective."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.steps = 0
        self.sent_bytes: NDArray[np.int64] = np.zeros(trainer.cluster.size, np.int64)
        """What this rank sent to every other in the last step."""

    def step(self, inputs: Tensors, targets: Tensors = ()) -> torch.Tensor:
        """Train one step on the whole batch, of which each rank reads its part; return the loss, a scalar.

        Raises ValueError for tensors of other shapes than those that were planned.
        """
        self.trainer.load(Batch(self.trainer.graph, (*_listed(inputs), *_listed(targets))), self.steps)
        _, self.sent_bytes = self.trainer.run()
        self.steps += 1
        graph, name = self.trainer.graph, self.trainer.graph.metrics["loss"]
        loss = self.trainer.whole(name)
        value = self.trainer.cluster.tell(None if loss is None else float(loss.sum()))
        return torch.tensor(value, dtype=getattr(torch, graph.tensors[name].dtype))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return, on rank 0, what the module's `load_state_dict` takes; nothing elsewhere."""
        return {name: torch.from_numpy(one) for name, one in state_dict(self.trainer, self.steps).items()}

    def sharded_state_dict(self) -> Mapping[str, DTensor]:
        """Return this rank's part of every weight as a DTensor in the memory that is trained; see `sharded_state`."""
        return sharded_state(self.trainer)


class Batch:
    """One batch as a data set: the whole tensors, in the order of the graph's inputs."""

    identity, steps_per_epoch = "tensors", 1
    held_out: HeldOut | None = None

    def __init__(self, graph: Graph, given: Sequence[torch.Tensor]) -> None:
        expected = whole_inputs(graph)
        if len(given) != len(expected):
            names = ", ".join(tensor.name for tensor in expected)
            raise ValueError(f"expected {len(expected)} tensors, {names}, found {len(given)}")
        self._whole: dict[str, HostArray] = {}
        batches = batch_rows(graph)
        for tensor, one in zip(expected, given, strict=True):
            name = source_name(tensor)
            shape = (batches[name], *tensor.shape[1:]) if tensor.shape else ()
            if one.numel() != prod(shape):
                raise ValueError(f"{name}: expected shape {list(shape)}, found {list(one.shape)}")
            self._whole[name] = array_of(one.cpu()).reshape(shape)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        whole = self._whole[source_name(tile.tensor)]
        places = [rows(tile), *map(indices, tile.region[1:])] if tile.region else []
        out[...] = xp.asarray(whole[np.ix_(*places)].astype(tile.tensor.dtype))


def batch_rows(graph: Graph) -> dict[str, int]:
    """Return how many rows each input has in the whole batch, all micro-batches together."""
    found: dict[str, int] = {}
    for tensor in graph.tensors.values():
        if tensor.init is not None and tensor.init.kind == "data" and tensor.shape:
            name = source_name(tensor)
            found[name] = max(found.get(name, 0), tensor.init.row + tensor.shape[0])
    return found


def _listed(given: Tensors) -> Sequence[torch.Tensor]:
    return (given,) if isinstance(given, torch.Tensor) else given
