"""Masks that are computed alike, which select as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class MasksAlike(TorchFunctionMode):
    """Within, of masks that are computed from the same the first stands for all.

    What different masks select has lengths that an export cannot compare, as a loss of `x[~m]` and `y[~m]` does.
    """

    MADE_BY = frozenset(
        f"{before}{name}{after}"
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "invert", "bool", "isnan", "isfinite")
        for before, after in (("", ""), ("__", "__"), ("bitwise_", ""), ("logical_", ""))
    ) | {"logical_not", "bitwise_not"}
    """Names of functions that make masks."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[Any, tuple[Tensor, int]] = {}
        self._noted: dict[int, tuple[Any, Tensor, Sequence[Any]]] = {}
        """By identity: what tells a mask, and what must stay for identities to."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch."""
        name = getattr(function, "__name__", "")
        if name == "__getitem__":
            args = (args[0], self.first_alike(args[1]))
        result = function(*args, **(kwargs or {}))
        if name in self.MADE_BY and not kwargs:
            self.note(name, args, result)
        return result

    def note(self, name: str, arguments: Sequence[Any], result: Any) -> None:
        """Note what a mask is computed from, where that is tensors and numbers."""
        is_mask = isinstance(result, Tensor) and result.dtype == torch.bool
        if is_mask and all(isinstance(argument, Tensor | bool | int | float) for argument in arguments):
            key = (name, *map(self._key, arguments))
            self._noted[id(result)] = key, result, arguments
            self._first.setdefault(key, (result, result._version))

    def _key(self, value: Any) -> Any:
        """Return what tells a tensor, as it is now, from others; a number tells itself."""
        if not isinstance(value, Tensor):
            return value
        key, *_ = self._noted.get(id(value), (id(value),))
        return key, value._version

    def first_alike(self, index: Any) -> Any:
        """Return an index, or several, with the first masks that were computed alike, where nothing changed them."""
        if isinstance(index, tuple):
            return tuple(map(self.first_alike, index))
        if not isinstance(index, Tensor) or id(index) not in self._noted:
            return index
        mask, version = self._first[self._noted[id(index)][0]]
        return mask if mask._version == version == index._version else index
