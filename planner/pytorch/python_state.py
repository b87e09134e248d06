"""What Python keeps from one call of a module to the next beside tensors: numbers, texts, containers, generators."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from planner.pytorch.refusing import OF_MODULES

ALIKE = (
    torch.Tensor, torch.dtype, torch.device, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator, nn.Module,
    type, FunctionType, BuiltinFunctionType, MethodType, ModuleType,
)  # fmt: skip
"""What is no state of Python's, or is told elsewhere."""

OF_MODULE_FILES = (int, float, list, dict, set)
"""What a variable of a file may be that functions change."""


def python_state(*parts: object) -> dict[str, object]:
    """Return what modules, and other objects, keep in attributes, by name, so that a change can be told.

    A number is itself. With modules it is what their classes keep, and what their functions name of their files.
    """
    kept: dict[str, object] = {}
    written: dict[int, object] = {}
    for part in parts:
        for name, value in _held(part):
            if id(value) not in written:
                written[id(value)] = _written(value)
            kept[name] = written[id(value)]
    return kept


def _held(part: object) -> Iterator[tuple[str, Any]]:
    part = getattr(part, "__self__", part)  # of a method
    if not isinstance(part, nn.Module):
        yield type(part).__name__, part
        return
    classes = set[type]()
    for path, module in part.named_modules():
        yield from (
            (f"{path}.{name}".removeprefix("."), vars(module)[name]) for name in vars(module).keys() - OF_MODULES
        )
        classes |= {kind for kind in type(module).__mro__ if not kind.__module__.startswith(("torch.", "builtins"))}
    for kind in sorted(classes, key=lambda kind: kind.__qualname__):
        yield from ((f"{kind.__name__}.{name}", value) for name, value in vars(kind).items() if name[:2] != "__")
        yield from _named_by(value for value in vars(kind).values() if isinstance(value, FunctionType))


def _named_by(functions: Iterable[FunctionType]) -> Iterator[tuple[str, Any]]:
    """Yield the variables of their files that functions name, and those that they call by name."""
    waiting, seen = [*functions], set[FunctionType]()
    while waiting:
        function = waiting.pop()
        seen.add(function)
        variables = [(name, function.__globals__.get(name)) for name in function.__code__.co_names]
        yield from (pair for pair in variables if isinstance(pair[1], OF_MODULE_FILES))
        called = {value for _, value in variables if isinstance(value, FunctionType)}
        waiting += [value for value in called - seen if not str(value.__module__).startswith("torch.")]


def _written(value: Any) -> object:
    """Return a number itself, of a container how much is in it and what, of anything else what it consists of."""
    if isinstance(value, ALIKE):
        return None
    if value is None or isinstance(value, int | float | str):
        return value
    written = _bytes(value, fast=True) or _bytes(value, fast=False)
    return Contents(len(value), written) if isinstance(value, list | dict | set) else written


class Contents(tuple[int, bytes]):
    """How much is in a container, and what."""

    __slots__ = ()

    def __new__(cls, *contents: Any) -> Contents:
        """Take a length and contents."""
        return super().__new__(cls, contents)


class _Writer(pickle.Pickler):
    """Writes what a value consists of, but for what is all alike; so is what cannot be written."""

    def persistent_id(self, value: Any) -> str | None:
        """Return the same for all that is alike."""
        return "" if isinstance(value, ALIKE) else None

    def reducer_override(self, value: Any) -> Any:
        """Write what can be in the usual way, and of a generator its variables."""
        if isinstance(value, GeneratorType):
            return dict, (list(value.gi_frame.f_locals.items()) if value.gi_frame else [],)
        getattr(value, "__dict__", None)  # which some get when they are first asked for it
        try:
            value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:
            return object, ()
        return NotImplemented


def _bytes(value: Any, *, fast: bool) -> bytes:
    """Return what a value consists of; nothing for one that consists of itself and is written fast."""
    file = BytesIO()
    writer = _Writer(file, pickle.HIGHEST_PROTOCOL)
    writer.fast = fast  # equal parts need not be the same, then
    try:
        writer.dump(value)
    except Exception:
        return b""
    return file.getvalue()


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    """Yield which names stand for other things, with numbers or lengths."""
    for name in sorted(before.keys() | after.keys()):
        then, now = before.get(name), after.get(name)
        if then != now or type(then) is not type(now):
            lengths = [one[0] if isinstance(one, Contents) else one for one in (then, now)]
            are_told = all(isinstance(one, int | float | str | None) for one in lengths) and lengths[0] != lengths[1]
            yield f"{name} from {lengths[0]} to {lengths[1]}" if are_told else name
