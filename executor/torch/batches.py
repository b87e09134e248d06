"""Tensors from outside: whole batches or each rank's rows of them, and state dicts in files of `torch.save`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from executor.cluster import Cluster, HostArray, raw_bytes
from executor.data import HeldOut, data_tensors
from executor.data.base import check_numbers
from executor.values import Array, ArrayModule, Tile, indices, rows
from executor.weights import InMemory, WeightsError
from planner.errors import InputError
from planner.graph.ir import Graph, Tensor, groups
from planner.pytorch.arguments import Arguments, Inputs

Tensors = torch.Tensor | Inputs
"""One tensor, or several in order or by name, possibly in containers."""


class Batch:
    """One batch as a data set: the whole tensors, by the names of the graph's inputs (collective)."""

    identity, steps_per_epoch = "tensors", 1
    held_out: HeldOut | None = None

    def __init__(  # noqa: PLR0913 -- a step's arguments
        self,
        graph: Graph,
        module: nn.Module,
        inputs: Tensors,
        targets: Tensors,
        *,
        cluster: Cluster | None = None,
        fill: bool = False,
    ) -> None:
        """Take the arguments of a module's call and the targets of its loss. Without a cluster they are whole.

        With `fill`, the rows of a batch that is too small are repeated.
        """
        ranks = 1 if cluster is None else cluster.size
        arguments = Arguments(inputs if isinstance(inputs, Mapping) else _listed(inputs), _listed(targets))
        names = arguments.names(module)
        _refuse_surplus(names, graph.given)
        tensors = dict(zip(names, arguments.values, strict=True))
        self._whole: dict[str, HostArray] = {}
        offers: dict[str, HostArray | int] = {}
        for tensor in data_tensors(graph):
            name, shape = tensor.name, _shape(graph, tensor)
            if name not in tensors:
                raise ValueError(f"expected a tensor {name}, found {', '.join(tensors) or 'none'}")
            array = array_of(_known(name, tensors[name]).cpu())
            is_part = _is_part(name, shape, array, ranks, fill)
            if tensor.dtype == "int32":
                check_numbers(name, tensor, array)
            offers[name] = array if is_part else crc32(raw_bytes(np.ascontiguousarray(array)).data)
            self._whole[name] = array if is_part else array.reshape(shape)
        offered = [offers] if cluster is None or ranks == 1 else cluster.all_gather(offers)
        for tensor in data_tensors(graph):
            name, shape = tensor.name, _shape(graph, tensor)
            whole = _put_together(name, self._whole[name], [offer[name] for offer in offered])
            self._whole[name] = np.resize(whole, shape) if whole.size < prod(shape) else whole.reshape(shape)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        whole = self._whole[tile.tensor.name]
        part = whole[_places(tile)]
        out[...] = xp.asarray(part.astype(tile.tensor.dtype, copy=False))


def _refuse_surplus(names: Sequence[str], planned: Sequence[str]) -> None:
    """Raise an InputError for tensors that the module was not planned with, which nothing would read."""
    if planned and (surplus := [name for name in names if name not in planned]):
        raise InputError(
            f"expected the {len(planned)} inputs and targets that the module was planned with ({', '.join(planned)}), "
            f"found {len(names)}, among them {', '.join(surplus)}: leave out those that it was not planned with"
        )


def _known(name: str, value: object) -> torch.Tensor:
    """Return a tensor that has data. Raises ValueError for anything else."""
    if not isinstance(value, torch.Tensor) or value.is_meta:
        kind = "one without memory" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ValueError(f"{name}: expected a tensor, found {kind}: use torch.as_tensor")
    return value


def _places(tile: Tile) -> tuple[slice | NDArray[np.int64], ...]:
    """Return the position of a tile in the whole batch, as slices if it is contiguous, which avoids a copy."""
    if all(len(runs) == 1 for runs in tile.region):
        starts = [tile.first_row, *[0] * len(tile.region)]
        return tuple(slice(start + at, stop + at) for ((start, stop),), at in zip(tile.region, starts, strict=False))
    return np.ix_(rows(tile), *map(indices, tile.region[1:]))


def _shape(graph: Graph, tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of an input for a whole batch. `tensor` may have the rows of a micro-batch."""
    return (tensor.shape[0] * graph.micro_batches, *tensor.shape[1:]) if tensor.shape else ()


def _is_part(name: str, shape: tuple[int, ...], array: HostArray, ranks: int, fill: bool) -> bool:
    """Return True for some rows of an input of this shape, False for the whole. Raises ValueError for anything else."""
    if groups(array.shape, shape) is not None:
        return False
    rows = prod(shape) // max(1, prod(array.shape[1:]))
    fits = array.ndim and groups((rows, *array.shape[1:]), shape) is not None
    if fits and (array.shape[0] * ranks == rows or (fill and 0 < array.shape[0] < rows)):
        return True
    part = f", or {[shape[0] // ranks, *shape[1:]]} on each of {ranks} ranks" if ranks > 1 and shape else ""
    raise ValueError(
        f"{name}: expected shape {list(shape)}{part}, found {list(array.shape)}: DataLoader's drop_last=True drops a "
        "smaller last batch, distribute(..., fill=True) repeats its rows"
    )


def _put_together(name: str, array: HostArray, offers: list[HostArray | int]) -> HostArray:
    """Return a whole input. Each rank offers its rows, or all offer the same. Raises ValueError if they differ."""
    parts = [offer for offer in offers if not isinstance(offer, int)]
    if len(parts) == len(offers):
        return parts[0] if all(np.array_equal(part, parts[0]) for part in parts) else np.concatenate(parts)
    if different := [rank for rank, offer in enumerate(offers) if not isinstance(offer, int) or offer != offers[0]]:
        raise ValueError(
            f"{name}: expected the same whole batch on all ranks, or 1/{len(offers)} of it from each; rank"
            f"{'s' * (len(different) > 1)} {', '.join(map(str, different))} gave another than rank 0: with a "
            f"DistributedSampler let DataLoader's batch_size be the planned one divided by {len(offers)}"
        )
    return array


def _listed(tensors: Any) -> Sequence[Any]:
    return tensors if isinstance(tensors, tuple | list) else (tensors,)


def read(path: Path) -> InMemory:
    """Return the tensors of a file by name, mapped into memory. Raises WeightsError if it holds anything else.

    Nothing in the file is executed.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # any kind, depending on the damage
        first = str(error).strip().partition("\n")[0]
        raise WeightsError(f"{path}: expected a state dict, as torch.save writes it, found another: {first}") from error
    is_named = isinstance(state, Mapping) and all(isinstance(name, str) for name in state)
    if not is_named or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise WeightsError(f"{path}: expected a state dict, tensors by name, found {type(state).__name__} of others")
    return InMemory({name: array_of(tensor) for name, tensor in state.items()})


def array_of(tensor: torch.Tensor) -> HostArray:
    """Return a tensor in host memory as an array. NumPy itself has no bfloat16."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())
