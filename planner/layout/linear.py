"""Linearity: the operands that an operator may read as partial sums, taken together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import tdl

FEW_OPERANDS = 6
"""Up to this many operands every subset is tried; for more, each operand alone and all together."""


def linear_sets(description: tdl.Description) -> tuple[frozenset[int], ...]:
    """Return the sets of operand positions in which, taken together, every result is linear; small sets first."""
    everything = range(len(description.operands))
    sizes: Iterable[int] = dict.fromkeys((1, len(everything)))
    if len(everything) <= FEW_OPERANDS:
        sizes = range(1, len(everything) + 1)
    candidates = (frozenset(chosen) for size in sizes for chosen in combinations(everything, size))
    return tuple(chosen for chosen in candidates if description.linear(chosen))
