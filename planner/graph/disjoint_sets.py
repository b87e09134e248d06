"""Disjoint-set forest (union-find)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from planner.grouping import grouped

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Disjoint sets; each member starts in a set of its own when it is given or first met."""

    def __init__(self, members: Iterable[T] = ()) -> None:
        self._parent = {member: member for member in members}

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[T, T]]) -> DisjointSets[T]:
        """Return the sets of all members of the pairs, with each pair tied."""
        result = cls()
        for pair in pairs:
            result.tie(pair)
        return result

    def find(self, member: T) -> T:
        """Return the representative of the member's set."""
        while (parent := self._parent.setdefault(member, member)) != member:
            self._parent[member] = self._parent[parent]
            member = parent
        return member

    def tie(self, members: Iterable[T]) -> None:
        """Merge the sets of these members."""
        roots = list(map(self.find, members))
        for root in roots[1:]:
            self._parent[root] = roots[0]

    def set_numbers(self) -> dict[T, int]:
        """Return the number of every member's set; sets are numbered in order of their first members."""
        numbers: dict[T, int] = {}
        return {member: numbers.setdefault(self.find(member), len(numbers)) for member in self._parent}

    def sets(self) -> list[list[T]]:
        """Return the members of every set; sets are in order of their first members."""
        return list(grouped((number, member) for member, number in self.set_numbers().items()).values())
