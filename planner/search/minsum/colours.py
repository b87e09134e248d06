"""Colours: variables of a problem whose surroundings are alike as far as a few terms away have one colour.

Colour refinement (Weisfeiler and Leman 1968), stopped early: the layers in the middle of a deep network look alike
though each is at another distance from its ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from planner.search.costs.tables import Term
from planner.search.minsum.problem import by_variable


def colours(kinds: Sequence[Hashable], terms: Sequence[Term], rounds: int) -> list[int]:
    """Return a colour per variable: equal for equal kinds with equal terms around, as far as `rounds` terms away."""
    terms_of = by_variable(terms, len(kinds))
    found = _numbered(kinds)
    for _ in range(rounds):
        around = [
            sorted((terms[f][1], terms[f][0].index(v), tuple(found[u] for u in terms[f][0])) for f in mine)
            for v, mine in enumerate(terms_of)
        ]
        found = _numbered([(colour, tuple(near)) for colour, near in zip(found, around, strict=True)])
    return found


def _numbered(values: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
