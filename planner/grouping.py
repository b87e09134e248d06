"""Group values, or sum amounts, by key; number distinct values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in order; keys are in order of their first values.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups = defaultdict[K, list[V]](list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def numbered_values(values: Iterable[K]) -> tuple[list[int], list[K]]:
    """Return the number of each value among the distinct ones, and these in order of their first occurrence.

    >>> numbered_values(["a", "b", "a"])
    ([0, 1, 0], ['a', 'b'])
    """
    numbers: dict[K, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values], list(numbers)


def summed(amounts: Iterable[tuple[K, float]]) -> Counter[K]:
    """Return the sum of each key's amounts; keys are in order of their first amounts.

    >>> summed([("a", 1), ("b", 2), ("a", 3)])
    Counter({'a': 4, 'b': 2})
    """
    total = Counter[K]()
    for key, amount in amounts:
        total[key] += amount  # type: ignore[assignment]
    return total
