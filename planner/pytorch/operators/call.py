"""A traced operator at work: its arguments by name, values in place of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    which argument is which parameter or buffer of the module.
    """

    op: str
    arguments: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    translation: Translation
    sources: Mapping[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.value(self.arguments[name])

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or the default where the operator has none of that name."""
        return self.value(self.arguments.get(name, default))

    def content(self, name: str) -> Content | None:
        """Return what a tensor holds, where that is known."""
        found = self.arguments.get(name)
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
        return int(self.arguments[name]) % max(1, rank)


def number(call: TracedCall, name: str) -> float | None:
    """Return an argument that is one number, if need be in every element; None for any other."""
    found = call.arguments.get(name)
    if isinstance(found, Content):
        return found.number
    return found if isinstance(found, int | float) else None


Converter = Callable[[Translation, TracedCall], Any]
"""Adds what an operator does and returns its value, or a tuple of values."""


def refuse(why: str) -> Converter:
    """Return the converter of what cannot be taken."""

    def converter(t: Translation, call: TracedCall) -> Value:
        raise UnsupportedError(why)

    return converter
