"""A traced operator at work: its arguments by name, values in place of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.pytorch.axes import Value
from planner.pytorch.translation import Translation


class UnsupportedError(Exception):
    """An operator, or a use of one, that the graph has nothing for; the message says what to do."""


@dataclass(frozen=True, slots=True)
class TracedCall:
    """An operator's arguments by the names of its schema, defaults filled in, and the shapes of what it returns."""

    op: str
    arguments: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or the default where the operator has none of that name."""
        return self.arguments.get(name, default)

    def dim(self, rank: int, name: str = "dim") -> int:
        """Return a dimension's number from 0."""
        return int(self.arguments[name]) % max(1, rank)


Converter = Callable[[Translation, TracedCall], Any]
"""Adds what an operator does and returns its value, or a tuple of values."""


def refuse(why: str) -> Converter:
    """Return the converter of what cannot be taken."""

    def converter(t: Translation, call: TracedCall) -> Value:
        raise UnsupportedError(why)

    return converter
