"""Tensors with known content as values of the graph, stored as compactly as possible."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch

from planner.errors import GraphError
from planner.graph.build import ONES, ZEROS
from planner.graph.ir import MOST_CHARACTERS, Array, Init, values
from planner.pytorch.private import FakeTensor
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.translate.translation import Translation

DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int32",
    torch.int32: "int32",
    torch.bool: "bool",
}
"""The graph's dtypes for PyTorch's; integers have 32 bits in the graph."""


def is_known(value: object) -> bool:
    """Return True for a tensor whose content is known."""
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and value.device.type != "meta"


def known_dtype(dtype: torch.dtype) -> str:
    """Return the graph's name of a dtype; raise GraphError if it has none."""
    if dtype not in DTYPES:
        raise GraphError(f"expected one of {', '.join(map(str, DTYPES))}, found {dtype}")
    return DTYPES[dtype]


def _are_alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True for equal elements with equal signs of zeros, because division by zero depends on the sign."""
    return torch.equal(tensor, other) and torch.equal(tensor.signbit(), other.signbit())


@dataclass(frozen=True)
class Content:
    """A tensor of known content."""

    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.tensor.shape)

    @cached_property
    def distinct(self) -> torch.Tensor:
        """The tensor reduced to one element along each dimension along which all elements are equal.

        Raises GraphError for a tensor on "meta", which has no content.
        """
        if self.tensor.is_meta:
            raise GraphError(
                'a buffer of the module is on "meta" and has no content: create the module on "cpu", or let a function '
                "of a file create it, as in decide FILE:FUNCTION"
            )
        rest = self.tensor
        for dim in range(rest.ndim):
            first = rest.narrow(dim, 0, min(1, rest.shape[dim]))
            if rest.shape[dim] > 1 and (rest.stride(dim) == 0 or _are_alike(first.expand_as(rest), rest)):
                rest = first
        return rest

    @cached_property
    def number(self) -> float | None:
        """The number that all elements equal; None if they differ."""
        return self.distinct.item() if self.tensor.numel() and self.distinct.numel() == 1 else None

    @cached_property
    def is_causal(self) -> bool:
        """True for a boolean mask that shows each query the keys up to it, for all samples and heads."""
        mask = self.distinct
        rows, columns = self.shape[-2:] if mask.ndim > 1 else (0, 0)
        if mask.dtype is not torch.bool or rows != columns or rows == 1 or mask.numel() != rows * columns:
            return False
        return torch.equal(mask.reshape(rows, rows), torch.ones(rows, rows, dtype=torch.bool).tril())

    @cached_property
    def array(self) -> Array:
        """The distinct content as a NumPy array, without dimensions of extent 1.

        Raises GraphError for integers of more than 32 bits.
        """
        return self.array_of(self.distinct.squeeze())

    def array_of(self, content: torch.Tensor) -> Array:
        """Return a tensor as a NumPy array; see `array`."""
        dtype = known_dtype(self.tensor.dtype)
        if content.dtype is torch.bfloat16:
            return content.float().numpy().astype(dtype)
        array = content.numpy(force=True)
        if dtype == "int32" and (abs(array) >= 2**31).any():
            raise GraphError("a constant has integers of more than 32 bits")
        return array.astype(dtype)

    @cached_property
    def init(self) -> Init:
        """Initial values for a graph; raises GraphError if they take too much space."""
        return values(self.array)

    @cached_property
    def whole_init(self) -> Init:
        """Initial values for a state that may change; raises GraphError if they take too much space."""
        if self.number in (0, 1) and not self.distinct.signbit():
            return ONES if self.number else ZEROS
        return values(self.array_of(self.tensor))

    @property
    def fits(self) -> bool:
        """True if it takes little of the space that one tensor may have in a graph."""
        try:
            return len(self.init.values) <= MOST_CHARACTERS // 16
        except GraphError:
            return False


def value_of(t: Translation, content: Content) -> Value:
    """Return a tensor with content as a value; dimensions along which it repeats store one element."""
    place = itertools.count()
    dims = tuple((next(place),) if extent > 1 else () for extent in content.distinct.shape)
    return Value(t.literal(content.array, lambda: content.init), dims, content.shape)


def as_value(t: Translation, value: Value | Content) -> Value:
    """Return a value; convert known content."""
    return value_of(t, value) if isinstance(value, Content) else value


def state_init(content: torch.Tensor) -> Init:
    """Return the initial values of a state; other numbers if they are too large for a graph."""
    try:
        return Content(content).whole_init
    except GraphError:
        return Init("uniform", 1.0) if content.is_floating_point() else ZEROS
