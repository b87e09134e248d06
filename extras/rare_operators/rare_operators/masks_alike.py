"""Replace masks that are computed alike by the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class MasksAlike(TorchFunctionMode):
    """Within this context, the first of several masks computed from the same operands stands for all.

    Selections by different masks have lengths that an export cannot compare, for example in a loss of `x[~m]` and
    `y[~m]`.
    """

    MADE_BY = frozenset(
        f"{before}{name}{after}"
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "invert", "bool", "isnan", "isfinite")
        for before, after in (("", ""), ("__", "__"), ("bitwise_", ""), ("logical_", ""))
    ) | {"logical_not", "bitwise_not"}
    """Names of functions that create masks."""

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
        """Record what a mask is computed from, if all operands are tensors and numbers."""
        is_mask = isinstance(result, Tensor) and result.dtype == torch.bool
        if is_mask and all(isinstance(argument, Tensor | bool | int | float) for argument in arguments):
            key = (name, *map(self._key, arguments))
            self._noted[id(result)] = key, result, arguments
            self._first.setdefault(key, (result, result._version))

    def _key(self, value: Any) -> Any:
        """Return a key for a tensor in its current version; a number is its own key."""
        if not isinstance(value, Tensor):
            return value
        key, *_ = self._noted.get(id(value), (id(value),))
        return key, value._version

    def first_alike(self, index: Any) -> Any:
        """Return an index with each mask replaced by the first one computed alike, if neither has changed."""
        if isinstance(index, tuple):
            return tuple(map(self.first_alike, index))
        if not isinstance(index, Tensor) or id(index) not in self._noted:
            return index
        mask, version = self._first[self._noted[id(index)][0]]
        return mask if mask._version == version == index._version else index
