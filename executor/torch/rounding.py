"""Another sample of the rounding errors of a module that PyTorch runs (Monte Carlo arithmetic)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class Rounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, every result of an operator is moved by up to the distance of two numbers of its size.

    Errors of equal numbers are equal, as they are of one kernel, so that ties stay; whole numbers are exact. `sample`
    tells one choice of errors from others.
    """

    def __init__(self, sample: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._moved = partial(_moved, sample)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator; what it writes in place, and views, are as they are."""
        result = func(*args, **(kwargs or {}))
        is_alias = any(returned.alias_info is not None for returned in func._schema.returns)
        return result if is_alias or _is_exact(func._schema.name, args) else tree_map(self._moved, result)


def _is_exact(name: str, arguments: Sequence[Any]) -> bool:
    """Return True for an operator that chooses or moves elements, whose results are compared with these."""
    return name.removeprefix("aten::") in EXACT or any(
        argument in EXTREME for argument in arguments if isinstance(argument, str | float)
    )


EXACT = ("amax", "amin", "aminmax", "max", "min", "gather", "index", "index_select", "tril", "triu", "flip", "clone")

EXTREME = ("amax", "amin", inf, -inf)
"""Arguments by which other operators choose."""


def _moved(sample: int, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    if value.layout is not torch.strided or value.is_nested or value._is_zerotensor():
        return value
    by_chance = torch.sin(torch.frexp(value.double()).mantissa * 2**52 + sample)
    moved = value * (1 + torch.finfo(value.dtype).eps * by_chance)
    return torch.where(value == value.round(), value, moved.to(value.dtype))
