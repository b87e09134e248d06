"""Identical parts, detected by structure: repeated layers that depend on the same few shared variables.

Hubs are variables with many neighbours, such as the layout of a residual stream. Without the hubs, the minimization
problem splits into components. Components with equal terms on the same hubs have equal best states, so one of them
represents all and its terms count once per component. Nothing is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from msgspec import Struct

from planner.search.coarse.disjoint import DisjointSets
from planner.search.costs.tables import Term

HUB_NEIGHBOURS = 24


class Repeats(Struct, frozen=True):
    """The representative of each variable, and how often each term counts (0 if another term represents it)."""

    stands_for: tuple[int, ...]
    times: tuple[int, ...]

    @property
    def variables_standing_for_themselves(self) -> tuple[int, ...]:
        """Variables that represent themselves, ascending."""
        return tuple(v for v, u in enumerate(self.stands_for) if u == v)


def repeated_parts(kinds: Sequence[Hashable], terms: Sequence[Term]) -> Repeats:
    """Return the repeated parts among variables of the given kinds and terms of the given scopes and numbers.

    Variables can represent each other only if their kinds are equal, terms only if their numbers are equal.
    """
    hubs = _hub_variables(len(kinds), terms)
    owner = _component_by_variable(len(kinds), terms, hubs)
    mine: dict[int, list[int]] = defaultdict(list)
    members: dict[int, list[int]] = defaultdict(list)
    for v, component in enumerate(owner):
        if v not in hubs:
            members[component].append(v)
    times = [1] * len(terms)
    for position, (scope, _) in enumerate(terms):
        inside = next((v for v in scope if v not in hubs), None)
        if inside is not None:
            mine[owner[inside]].append(position)
    stands_for = list(range(len(kinds)))
    for first, *others in _groups_of_alike_components(kinds, terms, members, mine):
        for position in mine[first]:
            times[position] += len(others)
        for other in others:
            for v, u in zip(members[other], members[first], strict=True):
                stands_for[v] = u
            for position in mine[other]:
                times[position] = 0
    return Repeats(tuple(stands_for), tuple(times))


def _hub_variables(count: int, terms: Sequence[Term]) -> set[int]:
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for scope, _ in terms:
        for v in scope:
            neighbours[v].update(scope)
    return {v for v, around in enumerate(neighbours) if len(around) > HUB_NEIGHBOURS}


def _component_by_variable(count: int, terms: Sequence[Term], hubs: set[int]) -> list[int]:
    """Return the component of every variable: [variable]."""
    components = DisjointSets(range(count))
    for scope, _ in terms:
        components.tie(v for v in scope if v not in hubs)
    return [components.find(v) for v in range(count)]


def _groups_of_alike_components(
    kinds: Sequence[Hashable],
    terms: Sequence[Term],
    members: Mapping[int, list[int]],
    mine: Mapping[int, list[int]],
) -> Iterator[list[int]]:
    """Yield groups of components with equal kinds and, by position, equal terms; a hub equals only itself."""
    groups: dict[object, list[int]] = defaultdict(list)
    for component, variables in members.items():
        place = {v: position for position, v in enumerate(variables)}
        shape = sorted(
            (terms[position][1], tuple(place[v] if v in place else -1 - v for v in terms[position][0]))
            for position in mine.get(component, ())
        )
        groups[tuple(kinds[v] for v in variables), tuple(shape)].append(component)
    yield from groups.values()
