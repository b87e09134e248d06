"""A traced operator call: its arguments by name, values in place of tensors; and the table of converters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import torch

from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import view
from planner.pytorch.state.contents import Content, value_of
from planner.pytorch.translate.translation import Translation
from tdl import TDLError


class UnsupportedError(Exception):
    """An operator, or a use of one, that the graph cannot represent; the message gives advice."""


def refuse_if(condition: object, why: str) -> None:
    """Raise UnsupportedError if a condition holds."""
    if condition:
        raise UnsupportedError(why)


@dataclass(frozen=True, slots=True)
class TracedCall:
    """An operator's arguments by the names of its schema, with defaults, and the shapes and dtypes of its results.

    `call["x"]` is a tensor as a value. `sources` names the parameter or buffer of the module that an argument is.
    `read` records the arguments that were read: arguments that no converter reads must have their defaults.
    """

    op: str
    arguments: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    translation: Translation
    sources: Mapping[str, str]
    read: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Value:
        """Return a tensor, with or without known content, as a value; raise UnsupportedError for a number."""
        value: Value = self.value(self.argument(name))
        refuse_if(isinstance(value, int | float), f"{self.op} with a number for {name} is not supported")
        return value

    def optional(self, name: str) -> Value | None:
        """Return a tensor as a value; None if it is None."""
        return None if self.argument(name) is None else self[name]

    def tensors(self, name: str) -> list[Value]:
        """Return tensors as values; a single one as a list."""
        values = self.value(self.argument(name))
        return [values] if isinstance(values, Value) else list(values)

    def first(self, *names: str) -> Value:
        """Return the tensor under whichever name the operator has."""
        return self[next(name for name in names if name in self.arguments)]

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument in PyTorch's form, except tensors; the default if the operator lacks it."""
        self.read.add(name)
        return self.arguments.get(name, default)

    def ignore(self, *names: str) -> None:
        """Mark arguments, or all, as irrelevant beyond the result's shape and dtype."""
        self.read.update(names or self.arguments)

    def content(self, name: str) -> Content | None:
        """Return a tensor's content; None if unknown."""
        argument = self.argument(name)
        return argument if isinstance(argument, Content) else None

    def constant(self, name: str) -> float | None:
        """Return an argument that is one number, perhaps in every element; None for any other."""
        argument = self.argument(name)
        if isinstance(argument, Content):
            return argument.number
        return argument if isinstance(argument, int | float) else None

    def number(self, name: str) -> float:
        """Return a floating-point argument."""
        return float(self.argument(name))

    def integer(self, name: str) -> int:
        """Return an integer argument."""
        return int(self.argument(name))

    def flag(self, name: str) -> bool:
        """Return a boolean argument; False if the operator lacks it."""
        return bool(self.argument(name))

    def integers(self, name: str) -> tuple[int, ...]:
        """Return integer arguments; a single one as a tuple, None as an empty tuple."""
        argument = self.argument(name)
        argument = () if argument is None else argument
        return (argument,) if isinstance(argument, int) else tuple(map(int, argument))

    def dim(self, rank: int, name: str = "dim") -> int:
        """Return a dimension's number, counted from 0."""
        return self.integer(name) % max(1, rank)

    def value(self, argument: Any) -> Any:
        """Return an argument with values in place of tensors with known content."""
        if isinstance(argument, Content):
            return value_of(self.translation, argument)
        if isinstance(argument, list | tuple):
            return type(argument)(map(self.value, argument))
        return argument


WITHOUT_MEANING = frozenset((
    "device", "dtype", "layout", "memory_format", "pin_memory", "non_blocking", "copy", "implicit", "generator",
    "cudnn_enabled", "cudnn_enable", "sparse", "sparse_grad", "path", "stable", "sorted",
))  # fmt: skip
"""Arguments that change no element of a result, or that follow from its dtype."""


def refuse_unread(call: TracedCall, schema: torch.FunctionSchema) -> None:
    """Raise UnsupportedError for an argument that no converter read, unless it has its default."""
    for argument in schema.arguments:
        name, value = argument.name, call.arguments[argument.name]
        if name not in call.read | WITHOUT_MEANING and not _is_default(argument, value):
            shown = "a tensor" if isinstance(value, Value | Content) else value
            raise UnsupportedError(f"{call.op} with {name}={shown} is not supported")


def _is_default(argument: torch.Argument, value: Any) -> bool:
    """Return True for an argument's default; without a default, for False, None, empty or zero."""
    if argument.has_default_value():
        return bool(value == argument.default_value)
    return not any(value) if isinstance(value, list | tuple) else not value


Converter = Callable[[Translation, TracedCall], Value | tuple[Value, ...]]
"""Adds the nodes of an operator and returns its value, or a tuple of values."""

CONVERTERS: dict[str, Converter] = {}
"""Converters of PyTorch's operators, by name without overload; ATen's have no namespace."""


C = TypeVar("C", bound=Converter)


def converter(*names: str) -> Callable[[C], C]:
    """Register the decorated function as the converter of PyTorch operators: "aten.gelu.default", "mine::scale".

    A converter applies to all overloads. Raises TDLError for an operator that already has a converter.
    """
    for name in names:
        if not isinstance(name, str):
            raise TDLError(f"expected the name of an operator of PyTorch to register a converter for, found {name!r}")
        if key_of(name) in CONVERTERS:
            raise TDLError(f"{name}: name clash: the operator already has a converter")

    def enter(entry: C) -> C:
        CONVERTERS.update({key_of(name): entry for name in names})
        return entry

    return enter


def of_vectors(convert: C) -> C:
    """Let a converter of an operator along a dimension treat scalars as vectors of one element, as PyTorch does."""

    @wraps(convert)
    def converted(t: Translation, call: TracedCall) -> Value | tuple[Value, ...]:
        operands = {name: call[name] for name in ("self", "index", "src") if name in call.arguments}
        if all(value.rank for value in operands.values()):
            return convert(t, call)
        vectors = {name: value if value.rank else value.repeated(0) for name, value in operands.items()}
        shapes = tuple(shape or (1,) for shape in call.shapes)
        results = convert(t, replace(call, arguments={**call.arguments, **vectors}, shapes=shapes))
        if isinstance(results, Value):
            return view(t, results, call.shapes[0])
        return tuple(view(t, result, shape) for result, shape in zip(results, call.shapes, strict=True))

    return converted  # type: ignore[return-value]


def key_of(name: str) -> str:
    """Return an operator's name in the table of converters.

    >>> key_of("aten.add.Tensor"), key_of("mine.scale.default"), key_of("mine::scale")
    ('add', 'mine::scale', 'mine::scale')
    """
    namespace, *rest = name.replace("::", ".").split(".")
    if not rest:
        return namespace
    return rest[0] if namespace == "aten" else f"{namespace}::{rest[0]}"
