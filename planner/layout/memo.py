"""Arrays that are remembered, in a bounded number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

from numpy.typing import NDArray

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=NDArray[Any])

MEMO_BYTES = 1 << 28
"""What the results of one function may take together; the oldest are forgotten."""


def remembered(function: Callable[[K], V]) -> Callable[[K], V]:
    """Return the function with its results remembered."""
    results: dict[K, V] = {}
    taken = 0

    @wraps(function)
    def recall(key: K) -> V:
        nonlocal taken
        if (result := results.get(key)) is None:
            result = results[key] = function(key)
            taken += result.nbytes
            while taken > MEMO_BYTES and len(results) > 1:
                taken -= results.pop(next(iter(results))).nbytes
        return result

    return recall
