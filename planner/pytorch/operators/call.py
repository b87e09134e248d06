"""A traced operator at work: its arguments by name, values in place of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.pytorch.axes import Value
from planner.pytorch.contents import Content, value_of
from planner.pytorch.translation import Translation


class UnsupportedError(Exception):
    """An operator, or a use of one, that the graph has nothing for; the message says what to do."""


@dataclass(frozen=True, slots=True)
class TracedCall:
    """An operator's arguments by the names of its schema, defaults filled in, and shapes and dtypes of what it returns.

    Tensors of known content stay what they are among the arguments; asked for by name they are values. `sources` says
    which argument is which parameter or buffer of the module, and `read` which arguments were asked for.
    """

    op: str
    arguments: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    translation: Translation
    sources: Mapping[str, str]
    read: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        return self.value(self.given(name))

    def given(self, name: str) -> Any:
        """Return an argument as it is."""
        self.read.add(name)
        return self.arguments[name]

    def need_not(self, *names: str) -> None:
        """Note that arguments, or all, say nothing that the result's shape and dtype do not."""
        self.read.update(names or self.arguments)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or the default where the operator has none of that name."""
        return self[name] if name in self.arguments else default

    def content(self, name: str) -> Content | None:
        """Return what a tensor holds, where that is known."""
        found = self.given(name) if name in self.arguments else None
        return found if isinstance(found, Content) else None

    def value(self, argument: Any) -> Any:
        """Return an argument with values in place of tensors of known content."""
        if isinstance(argument, Content):
            return value_of(self.translation, argument)
        if isinstance(argument, list | tuple):
            return type(argument)(self.value(one) for one in argument)
        return argument

    def dim(self, rank: int, name: str = "dim") -> int:
        """Return a dimension's number from 0."""
        return int(self.given(name)) % max(1, rank)


def number(call: TracedCall, name: str) -> float | None:
    """Return an argument that is one number, if need be in every element; None for any other."""
    found = call.given(name) if name in call.arguments else None
    if isinstance(found, Content):
        return found.number
    return found if isinstance(found, int | float) else None


WITHOUT_MEANING = frozenset((
    "device", "dtype", "layout", "memory_format", "pin_memory", "non_blocking", "copy", "implicit", "generator",
    "cudnn_enabled", "cudnn_enable", "sparse", "sparse_grad", "path", "stable", "sorted",
))  # fmt: skip
"""Arguments that change no element of a result, or that its dtype tells."""


def refuse_unread(call: TracedCall, schema: Any) -> None:
    """Raise UnsupportedError for an argument that no converter read, unless it is what the schema has by default."""
    for argument in schema.arguments:
        name, value = argument.name, call.arguments[argument.name]
        if name not in call.read | WITHOUT_MEANING and not _is_default(argument, value):
            found = "a tensor" if isinstance(value, Value | Content) else value
            raise UnsupportedError(f"{call.op} with {name}={found} has no operator here")


def _is_default(argument: Any, value: Any) -> bool:
    """Whether an argument has its default; one that has none that it is no, nothing or zero."""
    if argument.has_default_value():
        return bool(value == argument.default_value)
    return not any(value) if isinstance(value, list | tuple) else not value


Converter = Callable[[Translation, TracedCall], Any]
"""Adds what an operator does and returns its value, or a tuple of values."""


def refuse(why: str) -> Converter:
    """Return the converter of what cannot be taken."""

    def converter(t: Translation, call: TracedCall) -> Value:
        raise UnsupportedError(why)

    return converter
