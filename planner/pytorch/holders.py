"""What holds values, however deep: lists, dicts and sets, and objects in their attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

ALIKE = (
    torch.Tensor, torch.dtype, torch.device, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator, nn.Module,
    type, FunctionType, BuiltinFunctionType, MethodType, ModuleType,
)  # fmt: skip
"""What holds nothing, or is told elsewhere."""

MOST_VALUES = 1 << 20
"""How many values are looked at."""


def is_holder(value: Any) -> bool:
    """Return True for what holds values that may be others later."""
    if isinstance(value, dict | list | set | deque):
        return True
    kind = type(value)
    return not isinstance(value, ALIKE) and kind.__module__.split(".")[0] not in ("torch", "builtins")


def content_of(holder: Any) -> Any:
    """Return what a holder holds, as a list or a dict of its own, whatever its class would say."""
    if isinstance(holder, dict):
        return {key: dict.__getitem__(holder, key) for key in dict.keys(holder)}
    kind = next((kind for kind in (list, tuple, set, frozenset, deque) if isinstance(holder, kind)), None)
    return _attributes(holder) if kind is None else [*kind.__iter__(holder)]


def put_back(holder: Any, content: Any) -> None:
    """Let a holder hold a content, and nothing else."""
    if isinstance(holder, dict | list | set | deque):
        holder.clear()
        holder.extend(content) if isinstance(holder, list | deque) else holder.update(content)
        return
    own = getattr(holder, "__dict__", {})
    for name in _attributes(holder).keys() - content.keys():
        own.pop(name) if name in own else object.__delattr__(holder, name)
    for name, value in content.items():
        own.update({name: value}) if name in own else object.__setattr__(holder, name, value)


def values_in(values: Iterable[Any], apart: Container[int] = ()) -> Iterator[Any]:
    """Yield values, and what they hold, but not what holders of the identities `apart` do."""
    waiting, seen = list(values), dict[int, Any]()
    while waiting and len(seen) < MOST_VALUES:
        value = waiting.pop()
        if id(value) in seen or id(value) in apart:
            continue
        seen[id(value)] = value
        yield value
        if is_holder(value) or isinstance(value, tuple | frozenset):
            content = content_of(value)
            waiting += content.values() if isinstance(content, dict) else content


def _attributes(value: Any) -> dict[str, Any]:
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for own in slots for name in ([own] if isinstance(own, str) else own) if name[:2] != "__"]
    attributes = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return attributes | dict(getattr(value, "__dict__", {}))
