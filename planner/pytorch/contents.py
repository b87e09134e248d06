"""Tensors with content as values of the graph: as little as says it all."""

from __future__ import annotations

import torch

from planner.errors import GraphError
from planner.graph.constants import Array
from planner.pytorch.axes import Value
from planner.pytorch.translation import Translation

DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int32",
    torch.int32: "int32",
    torch.bool: "bool",
}
"""What the graph has for PyTorch's dtypes; its whole numbers have 32 bits."""


def known_dtype(dtype: torch.dtype) -> str:
    """Return the graph's name of a dtype; a GraphError for one that it has not."""
    if dtype not in DTYPES:
        raise GraphError(f"expected one of {', '.join(map(str, DTYPES))}, found {dtype}")
    return DTYPES[dtype]


def value_of(t: Translation, content: torch.Tensor) -> Value:
    """Return a tensor with content as a value; dimensions along which it repeats hold one element."""
    small = distinct(content)
    kept = [dim for dim in range(small.ndim) if small.shape[dim] > 1]
    core = small.reshape([small.shape[dim] for dim in kept])
    tensor = t.literal(_array(core))
    place = {dim: at for at, dim in enumerate(kept)}
    dims = tuple((place[dim],) if dim in place else () for dim in range(content.ndim))
    return Value(tensor, dims, tuple(content.shape))


def _array(content: torch.Tensor) -> Array:
    """Return a tensor's content as NumPy has it; a GraphError for whole numbers of more than 32 bits."""
    dtype = known_dtype(content.dtype)
    if content.dtype is torch.bfloat16:
        return content.float().numpy().astype(dtype)
    found = content.numpy(force=True)
    if dtype == "int32" and (abs(found) >= 2**31).any():
        raise GraphError("a constant of whole numbers of more than 32 bits")
    return found.astype(dtype)


def distinct(content: torch.Tensor) -> torch.Tensor:
    """Return a tensor of one element along each dimension along which its elements are the same."""
    for dim in range(content.ndim):
        first = content.narrow(dim, 0, min(1, content.shape[dim]))
        if content.shape[dim] > 1 and (content.stride(dim) == 0 or torch.equal(first.expand_as(content), content)):
            content = first
    return content
