"""Identical parts of a problem, solved once: repeated layers that hang on the same few shared variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.search.coarse.repeats import repeats
from planner.search.minsum.problem import Problem, simplified


@dataclass(frozen=True, slots=True)
class Merged:
    """What leads back to the problem before merging: `kept` are the variables left, `stands_for[v]` acts for v."""

    kept: tuple[int, ...]
    stands_for: tuple[int, ...]

    def expand(self, states: Sequence[int]) -> list[int]:
        """Return a state for every variable of the other problem."""
        of = dict(zip(self.kept, states, strict=True))
        return [of[v] for v in self.stands_for]


def merge(problem: Problem) -> tuple[Problem, Merged]:
    """Return the problem with one of each group of identical components, its tables multiplied."""
    found = repeats(problem.sizes, problem.terms)
    place = {v: i for i, v in enumerate(found.kept)}
    terms = tuple(
        (
            tuple(place[v] for v in scope),
            number if times == 1 else problem.tables.weighted_sum(((number, times),)),
        )
        for (scope, number), times in zip(problem.terms, found.times, strict=True)
        if times
    )
    sizes = tuple(problem.sizes[v] for v in found.kept)
    merged = simplified(Problem(problem.tables, sizes, terms, problem.constant))
    return merged, Merged(found.kept, found.stands_for)
