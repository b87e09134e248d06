"""Weights that training begins with: a module's own, made submodule by submodule where it is on the meta device."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from executor.cluster import HostArray
from executor.torch.state_files import array_of
from executor.values import stream
from executor.weights.files import InMemory, Kind, WeightsError
from planner.graph.entries import entries_of
from planner.graph.ir import Graph
from planner.layout import Region


class Initial(InMemory):
    """A module's state dict, read as it is; a submodule on the meta device is initialized while its entries are read.

    Its random numbers follow from the seed and its name, so that all ranks read parts of the same.
    """

    def __init__(self, module: nn.Module, graph: Graph, seed: int) -> None:
        self._module = module
        self._seed = seed
        self._tensors: dict[str, torch.Tensor] = module.state_dict()
        held = {name for name, entry in entries_of(graph).items() if entry.tensor}
        self._tensors |= {
            name: tensor.clone()
            for name, tensor in self._tensors.items()
            if name not in held  # needed to the end
        }
        self._initialized = lru_cache(1)(self._initialize)

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Shape and dtype of every entry, by its name."""
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

    def _initialize(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return the initial parameters and buffers of one submodule, without its children's."""
        submodule = copy.deepcopy(self._module.get_submodule(name))
        initialize: Any = getattr(submodule, "reset_parameters", None)
        if initialize is None:
            raise WeightsError(
                f"{name or 'the module'}: a {type(submodule).__name__} on the meta device without reset_parameters(), "
                "which makes its weights: give distribute() a file of weights"
            )
        submodule.to_empty(device="cpu", recurse=False)
        with torch.random.fork_rng([]):
            torch.manual_seed(int(stream(self._seed, name)) % (1 << 63))
            initialize()
        return {**dict(submodule.named_parameters(recurse=False)), **dict(submodule.named_buffers(recurse=False))}
