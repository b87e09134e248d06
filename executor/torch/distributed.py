"""Train a PyTorch module by a plan, in the ranks' own program."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import cache, cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from executor import checkpoint
from executor.backend import array_module, require_dtypes
from executor.checkpoint import checksum, file_digest, require_agreement
from executor.cluster import HostArray
from executor.process import is_torchrun
from executor.torch.batches import Batch, Tensors, array_of
from executor.torch.checkpoints import ADVICE, Checkpoints, TrainingState
from executor.torch.optimizers import PlannedUpdates, torch_optimizer
from executor.torch.ranks import cluster, join
from executor.torch.tensors import tensor_of
from executor.training import Trainer, rank_programs
from executor.values import stream
from executor.weights import InMemory, Kind, Weights, WeightsError
from executor.weights.saving import state_dict
from planner import layout as layouts
from planner.errors import PlanError
from planner.graph.ir import Entry, Graph, entries_of, groups
from planner.layout import Region
from planner.layout.ways import AxisPlacement, StridedShard, interleaved_twice, mesh_axes, uneven
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_of


class Initial(InMemory):
    """A module's state dict. A submodule on the meta device is initialized when its entries are read.

    Its random numbers follow from the seed and its name, so all ranks read parts of the same values.
    """

    def __init__(self, module: nn.Module, graph: Graph, seed: int) -> None:
        self._module = module
        self._seed = seed
        self._tensors: dict[str, torch.Tensor] = module.state_dict()
        held = {name for name, entry in entries_of(graph).items() if entry.tensor}
        # Values that no tensor of the graph holds are needed to the end.
        self._tensors |= {name: tensor.clone() for name, tensor in self._tensors.items() if name not in held}
        self._initialized = lru_cache(1)(self._initialize)

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Shape and dtype of every entry, by name."""
        return {
            name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str, region: Region) -> HostArray:
        """Return a region of an entry as a local array."""
        tensor = self._tensors[name]
        if tensor.is_meta:
            owner, _, key = name.rpartition(".")
            tensor = self._initialized(owner)[key]
        return InMemory({name: array_of(tensor.cpu())}).read(name, region)

    def digest(self) -> str:
        """Return a digest of the weights. Weights that the seed determines are excluded."""
        there = {name: tensor for name, tensor in self._tensors.items() if not tensor.is_meta}
        return checkpoint.digest({name: checksum(array_of(tensor.cpu())) for name, tensor in there.items()})

    def _initialize(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return the initial parameters and buffers of one submodule, without its children."""
        submodule = copy.deepcopy(self._module.get_submodule(name))
        initialize: Any = getattr(submodule, "reset_parameters", None)
        if initialize is None:
            raise WeightsError(
                f"{name or 'the module'}: a {type(submodule).__name__} on the meta device has no reset_parameters() to "
                "initialize its weights: pass a file of weights to distribute()"
            )
        submodule.to_empty(device="cpu", recurse=False)
        with torch.random.fork_rng([]):
            torch.manual_seed(int(stream(self._seed, name)) % (1 << 63))
            initialize()
        return {**dict(submodule.named_parameters(recurse=False)), **dict(submodule.named_buffers(recurse=False))}


def sharded_state(trainer: Trainer, names: Iterable[str] | None = None) -> Mapping[str, DTensor]:
    """Return entries of the module's state dict as DTensors in the arena's memory (collective); all by default.

    Raises PlanError, naming the entry, if an extent is split unevenly, or interleaved in a way that DTensor does not
    support.
    """
    held = held_entries(trainer)
    return {name: _sharded(trainer, name, held[name]) for name in (held if names is None else names)}


def held_entries(trainer: Trainer) -> Mapping[str, Entry]:
    """Return the entries of the module's state dict that are tensors of the graph."""
    return {name: entry for name, entry in entries_of(trainer.graph).items() if entry.tensor is not None}


def _sharded(trainer: Trainer, name: str, entry: Entry) -> DTensor:
    plan, tensor = trainer.programs.plan, trainer.graph.tensors[entry.tensor or ""]
    layout = plan.layouts[tensor.name]
    grouped = groups(entry.shape, tensor.shape)
    assert grouped is not None, name  # checked with the graph
    axes = mesh_axes(layout, plan.ways, tensor.shape, grouped)
    reason = uneven(tensor.shape, layout, plan.ways) or interleaved_twice(axes)
    if reason is not None:
        raise PlanError(f"{name}: {reason}: DTensor does not support that; use state_dict() for the whole")
    local = tensor_of(trainer.view(tensor.name))
    local = local.view([prod(local.shape[axis] for axis in group) for group in grouped])
    mesh = _mesh(local.device.type, tuple(axis.ways for axis in axes))
    return DTensor.from_local(
        local,
        mesh,
        [_placement(axis.placement) for axis in axes] or [Replicate()],
        run_check=False,
        shape=torch.Size(entry.shape),
        stride=torch.empty(entry.shape, device="meta").stride(),
    )


@cache
def _mesh(device: str, ways: tuple[int, ...]) -> DeviceMesh:
    """Return all ranks as a mesh (collective on first use)."""
    return DeviceMesh(device, torch.arange(prod(ways)).reshape(ways or (1,)))


def _placement(placement: AxisPlacement) -> Placement:
    match placement:
        case layouts.Shard(dim):
            return Shard(dim)
        case StridedShard(dim, split_factor):
            return _StridedShard(dim, split_factor=split_factor)
        case layouts.REPLICATE:
            return Replicate()
    raise ValueError(f"expected a weight that workers hold values of, found it {placement}")


TIMEOUT = timedelta(minutes=30)
"""How long ranks wait for each other, as in PyTorch."""

AUTOCASTS = ("cpu", "cuda")


def distribute(  # noqa: PLR0913 -- keyword settings
    module: nn.Module,
    plan: Plan | str | Path,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    weights: str | Path | None = None,
    prefetch: int = 1,
    timeout: timedelta = TIMEOUT,
    fill: bool = False,
    collectives: str = "pairs",
    agree: bool = True,
) -> Distributed:
    """Return the training of a module by a plan of its graph, on the ranks of the process group (collective).

    Every rank passes a module with the same weights and takes its part of them; the module itself does not change.
    Submodules on the meta device are initialized part by part, or read from `weights`, a state dict file. An
    `optimizer` of the module's parameters replaces the one that the plan makes, including its state. With `fill`, the
    rows of a batch that is too small are repeated. `collectives` are messages between "pairs" of ranks, or operations
    of PyTorch's "library", whose sums are rounded in another order. If they `agree`, ranks compare plans, weights and
    options now, and replicas when a checkpoint is written. A process started by torchrun does not need to create a
    group. Raises PlanError if the number of ranks is not that of the plan's workers or the optimizer was not planned,
    WeightsError if the module was not planned, BackendError without a GPU for it, and TransportError for unknown
    `collectives`; later JobError, which names the ranks that are missing after `timeout`.
    """
    plan = plan_of(plan)
    if not dist.is_initialized():
        if not is_torchrun(os.environ):
            raise PlanError(f"expected {plan.workers} ranks: start them with torchrun --nproc-per-node {plan.workers}")
        join(timeout)
    ranks = cluster(timeout).with_collectives(collectives)
    if ranks.size != plan.workers:
        raise PlanError(
            f"expected {plan.workers} ranks, one per worker, found {ranks.size}: start them with "
            f"{ranks.launch_advice(plan.workers)}"
        )
    devices = {torch.get_default_device().type, *(parameter.device.type for parameter in module.parameters())}
    xp = array_module("cupy" if "cuda" in devices else "numpy")
    ranks.use_device(xp)
    require_dtypes(xp, (tensor.dtype for tensor in plan.graph.tensors.values()))
    programs = rank_programs(plan, ranks.rank, prefetch, evaluate="loss")
    trainer = Trainer(programs, ranks, xp, ranks.choose_transport("auto", xp).name)
    initial = Path(weights) if weights is not None else Initial(module, plan.graph, plan.seed)
    trainer.begin_with(Weights.of(initial, plan.graph))
    if agree:
        content = initial.digest() if isinstance(initial, Initial) else file_digest(initial, ranks)
        given = {"plan": checkpoint.digest(plan.to_json()), "weights": content}
        options = {"prefetch": str(prefetch), "fill": str(fill), "collectives": collectives}
        require_agreement(trainer, {**given, **options}, ADVICE)
    return Distributed(trainer, module, optimizer or torch_optimizer(plan.graph, module), fill, agree)


class Distributed:
    """The training of a module, of which this rank has its part. All methods are collective."""

    def __init__(
        self, trainer: Trainer, module: nn.Module, optimizer: torch.optim.Optimizer | None, fill: bool, agree: bool
    ) -> None:
        self.trainer = trainer
        self.optimizer = optimizer
        """PyTorch's optimizer, with the groups and the state of this training. Its own `step` updates nothing."""
        self.sent_bytes: NDArray[np.int64] = np.zeros(trainer.cluster.size, np.int64)
        """Bytes that this rank sent to every other in the last step."""
        self._module, self._fill, self._agree = module, fill, agree
        self._updates = None if optimizer is None else PlannedUpdates(trainer, module, optimizer)
        self._state = TrainingState(trainer, self._updates)

    @property
    def rank(self) -> int:
        """The worker of the plan that this rank is."""
        return self.trainer.cluster.rank

    @property
    def steps(self) -> int:
        """Number of steps done, including those before a checkpoint."""
        return self._state.steps

    def step(self, inputs: Tensors, targets: Tensors = ()) -> torch.Tensor:
        """Train one step on a batch; return the loss, a scalar.

        Inputs and targets are those that the module was planned with, inputs in order or by name: on every rank the
        whole batch, or its rows in the order of the ranks. Raises ValueError for tensors of other shapes or whole
        batches that differ between ranks, InputError for tensors that it was not planned with, DataError for labels
        beyond the classes, and PlanError for changes of the optimizer that need another plan.
        """
        self.trainer.load(self._batch(inputs, targets), self.steps)
        if self._updates is not None:
            self._updates.apply(self.steps)
        _, self.sent_bytes = self.trainer.run()
        self._state.steps += 1
        if self.optimizer is not None:
            self.optimizer.step()  # for schedulers, which count it
        return self._loss()

    def evaluate(self, inputs: Tensors, targets: Tensors = ()) -> torch.Tensor:
        """Return the loss of a batch in evaluation mode: no updates, no dropout, running averages."""
        batch, micro_batches = self._batch(inputs, targets), range(self.trainer.graph.micro_batches)
        losses = [self.trainer.evaluated("loss", batch, self.steps, number) for number in micro_batches]
        return torch.stack([self._told(whole) for whole in losses]).mean()

    def _batch(self, inputs: Tensors, targets: Tensors) -> Batch:
        if any(map(torch.is_autocast_enabled, AUTOCASTS)):
            raise PlanError("step() within torch.autocast: casts are planned; use autocast in the module's forward()")
        return Batch(self.trainer.graph, self._module, inputs, targets, cluster=self.trainer.cluster, fill=self._fill)

    def _loss(self) -> torch.Tensor:
        """Return the loss of the step. If all ranks hold it, they do not communicate."""
        name = self.trainer.graph.metrics["loss"]
        if len(set(self.trainer.programs.training.regions[name])) > 1:
            return self._told(self.trainer.whole(name))
        return self._scalar(float(self.trainer.host_copy(name).sum()))

    def _told(self, whole: HostArray | None) -> torch.Tensor:
        """Return the loss that rank 0 has."""
        return self._scalar(self.trainer.cluster.broadcast(None if whole is None else float(whole.sum())))

    def _scalar(self, value: float) -> torch.Tensor:
        dtype = self.trainer.graph.tensors[self.trainer.graph.metrics["loss"]].dtype
        return torch.tensor(value, dtype=getattr(torch, dtype))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the argument of the module's `load_state_dict` on rank 0; an empty dict on other ranks."""
        return {name: tensor_of(array) for name, array in state_dict(self.trainer, self.steps).items()}

    def sharded_state_dict(self) -> Mapping[str, DTensor]:
        """Return this rank's part of every weight as a DTensor in the memory that is trained; see `sharded_state`."""
        return sharded_state(self.trainer)

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._state, self.trainer, self._agree)

    def save(self, folder: str | Path, **others: Any) -> Future[Any]:
        """Start writing a checkpoint `folder/step-N`, with `others` that have a `state_dict`; see `Checkpoints`."""
        return self._checkpoints.save(Path(folder), others)

    def resume(self, folder: str | Path, **others: Any) -> int:
        """Resume from the folder's last complete checkpoint, if there is one; return how many steps are done."""
        return self._checkpoints.resume(Path(folder), others)
