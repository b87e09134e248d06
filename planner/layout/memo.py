"""Results that are remembered, in a bounded number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MEMO_BYTES = 1 << 28
"""What the results of one function may take together; the oldest are forgotten."""


def remembered(nbytes: Callable[[V], int]) -> Callable[[Callable[[K], V]], Callable[[K], V]]:
    """Return a decorator that remembers a function's results, each of which takes `nbytes` of it.

    >>> @remembered(len)
    ... def spelled(number):
    ...     return str(number)
    >>> spelled(12) is spelled(12)
    True
    """

    def decorate(function: Callable[[K], V]) -> Callable[[K], V]:
        results: dict[K, V] = {}
        taken = 0

        @wraps(function)
        def recall(key: K) -> V:
            nonlocal taken
            if key not in results:
                results[key] = result = function(key)
                taken += nbytes(result)
                while taken > MEMO_BYTES and len(results) > 1:
                    taken -= nbytes(results.pop(next(iter(results))))
            return results[key]

        return recall

    return decorate
