"""Identical parts of a problem, solved once: repeated layers that hang on the same few shared variables.

Without the hubs (variables with many neighbours, such as a residual stream's layout) the problem falls apart into
components. Components with equal tables on the same hubs have equal best states, so one stands for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from planner.search.problem import Problem, simplified
from planner.search.tables import Term

HUB_NEIGHBOURS = 24


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
    hubs = _hubs(problem)
    owner, members = _components(problem, hubs)
    terms: dict[int, list[Term]] = defaultdict(list)
    shared: list[Term] = []
    for term in problem.terms:
        inside = next((v for v in term[0] if v not in hubs), None)
        (shared if inside is None else terms[owner[inside]]).append(term)
    groups: dict[object, list[int]] = defaultdict(list)
    for component, variables in members.items():
        groups[_form(problem, variables, terms[component])].append(component)
    stands_for = list(range(len(problem.sizes)))
    result = shared
    for first, *others in groups.values():
        for other in others:
            for v, u in zip(members[other], members[first], strict=True):
                stands_for[v] = u
        weight = 1 + len(others)
        result += [
            (scope, problem.tables.weighted_sum(((number, weight),)) if others else number)
            for scope, number in terms[first]
        ]
    kept = tuple(v for v, u in enumerate(stands_for) if u == v)
    place = {v: i for i, v in enumerate(kept)}
    renamed = tuple((tuple(place[v] for v in scope), number) for scope, number in result)
    sizes = tuple(problem.sizes[v] for v in kept)
    merged = simplified(Problem(problem.tables, sizes, renamed, problem.constant))
    return merged, Merged(kept, tuple(stands_for))


def _hubs(problem: Problem) -> set[int]:
    neighbours: list[set[int]] = [set() for _ in problem.sizes]
    for scope, _ in problem.terms:
        for v in scope:
            neighbours[v].update(scope)
    return {v for v, around in enumerate(neighbours) if len(around) > HUB_NEIGHBOURS}


def _components(problem: Problem, hubs: set[int]) -> tuple[list[int], dict[int, list[int]]]:
    """Return every variable's component, and the components' variables in ascending order."""
    owner = list(range(len(problem.sizes)))

    def find(v: int) -> int:
        while owner[v] != v:
            owner[v] = owner[owner[v]]
            v = owner[v]
        return v

    for scope, _ in problem.terms:
        inside = [find(v) for v in scope if v not in hubs]
        for v in inside[1:]:
            owner[find(v)] = find(inside[0])
    members: dict[int, list[int]] = defaultdict(list)
    for v in range(len(owner)):
        if v not in hubs:
            members[find(v)].append(v)
    return [find(v) for v in range(len(owner))], members


def _form(problem: Problem, variables: list[int], terms: list[Term]) -> object:
    """Return what identical components have in common: sizes, and tables by position; hubs are themselves."""
    place = {v: position for position, v in enumerate(variables)}
    shape = tuple(
        sorted((number, tuple(place[v] if v in place else -1 - v for v in scope)) for scope, number in terms)
    )
    return tuple(problem.sizes[v] for v in variables), shape
