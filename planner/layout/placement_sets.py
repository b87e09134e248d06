"""Placement sets: which placements a search may choose from."""

from __future__ import annotations

from enum import StrEnum


class PlacementSet(StrEnum):
    """Which placements a search may choose from, spelt as in options and files: `S`, `S,R` or `S,R,P`.

    >>> PlacementSet.parse("R, S").allows_replicated
    True
    """

    SPLIT = "S"
    REPLICATED = "S,R"
    PARTIAL = "S,R,P"

    @classmethod
    def parse(cls, text: object) -> PlacementSet | None:
        """Return the set of this spelling, in any order; None where it is none."""
        parts = {part.strip() for part in text.split(",")} if isinstance(text, str) else set()
        return next((placements for placements in cls if parts == placements.letters), None)

    @property
    def letters(self) -> frozenset[str]:
        """The kinds of placements in it: S, R, P."""
        return frozenset(self.value.split(","))

    @property
    def allows_replicated(self) -> bool:
        """True if tensors may be replicated."""
        return "R" in self.letters

    @property
    def allows_partial(self) -> bool:
        """True if tensors may be left as partial sums."""
        return "P" in self.letters
