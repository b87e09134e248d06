"""State dicts in files of `torch.save`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import torch

from executor.cluster import HostArray
from executor.weights.loading import InMemory, WeightsError


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
