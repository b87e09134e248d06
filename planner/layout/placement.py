"""Placements and layouts: how a tensor lies over the workers, one per step; sets that searches choose from."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from planner.errors import PlanError


class Shard(Struct, frozen=True):
    """At this step each part of the workers holds its part of dimension `dim`."""

    dim: int

    def __str__(self) -> str:
        return f"S{self.dim}"


class Replicate(Struct, frozen=True):
    """At this step every part of the workers holds the same."""

    def __str__(self) -> str:
        return "R"


class Partial(Struct, frozen=True):
    """At this step every part holds a term of a sum: the tensor is the sum over the parts."""

    def __str__(self) -> str:
        return "P+"


class At(Struct, frozen=True):
    """At this step the workers with digit `group` alone hold anything."""

    group: int

    def __str__(self) -> str:
        return f"@{self.group}"


Placement = Shard | Replicate | Partial | At
Layout = tuple[Placement, ...]
REPLICATE = Replicate()
PARTIAL = Partial()


def parse_placement(text: str) -> Placement:
    """Read `S<dim>`, `R`, `P+` or `@<group>`; a PlanError names anything else."""
    if text == "R":
        return REPLICATE
    if text == "P+":
        return PARTIAL
    if match := re.fullmatch(r"([S@])(0|[1-9][0-9]{0,8})", text):
        return (Shard if match[1] == "S" else At)(int(match[2]))
    raise PlanError(f"expected a placement S<dimension>, R, P+ or @<group>, found {text!r}")


def format_layout(layout: Layout) -> str:
    """Write a layout as placements separated by commas, such as `S0,R,S1`."""
    return ",".join(map(str, layout))


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
