"""Disjoint-set forest (union-find)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Disjoint sets over given members; each member starts in a set of its own."""

    def __init__(self, members: Iterable[T]) -> None:
        self._parent = {member: member for member in members}

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[T, T]]) -> DisjointSets[T]:
        """Return the sets of all members of the pairs, with each pair tied."""
        sets = cls(dict.fromkeys(member for pair in pairs for member in pair))
        for pair in pairs:
            sets.tie(pair)
        return sets

    def find(self, member: T) -> T:
        """Return the representative of the member's set."""
        while (parent := self._parent[member]) != member:
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
