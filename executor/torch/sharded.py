"""A rank's weights as DTensors: the same memory, with the mesh and placements that the plan's layouts are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from executor.torch.tensors import tensor_of
from executor.training import Trainer
from planner import layout as layouts
from planner.errors import PlanError
from planner.graph.entries import entries_of, groups
from planner.graph.ir import Entry
from planner.layout.mesh_axes import AxisPlacement, StridedShard, interleaved_twice, mesh_axes, uneven


def sharded_state(trainer: Trainer, names: Iterable[str] | None = None) -> Mapping[str, DTensor]:
    """Return entries of the module's state dict that tensors of the graph hold, in the arena's memory (collective).

    By default all. Raises a PlanError that names the entry where an extent is split unevenly, or interleaved in ways
    that DTensor does not put together.
    """
    held = held_entries(trainer)
    return {name: _sharded(trainer, name, held[name]) for name in (held if names is None else names)}


def held_entries(trainer: Trainer) -> Mapping[str, Entry]:
    """Return the entries of the module's state dict that tensors of the graph hold."""
    return {name: entry for name, entry in entries_of(trainer.graph).items() if entry.tensor is not None}


def _sharded(trainer: Trainer, name: str, entry: Entry) -> DTensor:
    plan, tensor = trainer.programs.plan, trainer.graph.tensors[entry.tensor or ""]
    layout = plan.layouts[tensor.name]
    grouped = groups(entry.shape, tensor.shape)
    assert grouped is not None, name  # a graph was checked for that
    axes = mesh_axes(layout, plan.ways, tensor.shape, grouped)
    reason = uneven(tensor.shape, layout, plan.ways) or interleaved_twice(axes)
    if reason is not None:
        raise PlanError(f"{name}: {reason}: DTensor has no such parts; state_dict() has it whole")
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
    """Return all ranks as a mesh (collective, the first time)."""
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
