"""Where conditioning a bound pays: the variables around which a choice pays most beyond the bound, and their hubs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from planner.search.costs.tables import Scope, Table
from planner.search.minsum.bounds import Bound
from planner.search.minsum.conditioned import Conditioned, Hubs
from planner.search.minsum.problem import neighbours

REGION = 1000
"""How many variables are conditioned, but for the neighbours of the last."""

MATTERS = 0.3
"""A choice pays much around a variable if it is that part of the most that it pays around one."""

CASES = 16
"""So many cases of a hub are told apart: one for each of the likeliest states, the last for all others."""

TIED = 1e-6
"""States are as likely as the likeliest if their bounds differ by no more than this part."""


def around_hubs(bound: Bound, states: Sequence[int], colours: Sequence[int]) -> tuple[Conditioned, list[int]] | None:
    """Return a pairwise bound conditioned around where a choice pays beyond it, and on which variables.

    Hubs are among those variables of which a few states are the likeliest, and of one of the `colours`: that which the
    most shortest paths in the region go through. Any other variable belongs to the nearest hub. None without a hub.
    """
    scopes = [scope for scope, _ in bound.parts()[1]]
    adjacent = neighbours(len(states), scopes)
    pays = bound.pays(states)
    if not pays.any():
        return None
    middle = [v for v in np.argsort(-pays, kind="stable")[:REGION].tolist() if pays[v] > MATTERS * pays.max()]
    region = sorted(_reached(middle, adjacent, range(len(states)), REGION))
    bounds = bound.of_states()
    undecided = [v for v in region if 1 < np.count_nonzero(bounds[v] <= bounds[v].min() * (1 + TIED)) < CASES]
    paths = _paths_through(region, scopes)
    together: Counter[int] = Counter()
    for v in undecided:
        together[colours[v]] += paths[v]
    if not together:
        return None
    most = max(together, key=lambda colour: (together[colour], -colour))
    hubs = [v for v in undecided if colours[v] == most]
    nearest = _reached(hubs, adjacent, set(region))
    place = {v: i for i, v in enumerate(region)}
    of = {place[v]: place[hub] for v, hub in nearest.items() if v != hub}
    problem, messages = bound.part(region)
    return Conditioned(problem, Hubs(of, {place[hub]: _cases(bounds[hub]) for hub in hubs}), messages), region


def _reached(
    seeds: Iterable[int], adjacent: Sequence[Collection[int]], within: Collection[int], enough: int | None = None
) -> dict[int, int]:
    """Return the nearest seed of every variable, of those further and further away until there are enough."""
    found = {v: v for v in seeds}
    waiting = deque(found)
    while waiting and (enough is None or len(found) < enough):
        v = waiting.popleft()
        for u in sorted(adjacent[v]):
            if u in within and u not in found:
                found[u] = found[v]
                waiting.append(u)
    return found


def _paths_through(region: Sequence[int], scopes: Iterable[Scope]) -> Mapping[int, int]:
    """Return how many paths go through each variable of a region: a shortest one from every variable to every other."""
    place = {v: i for i, v in enumerate(region)}
    pairs = np.array([[place[v] for v in scope] for scope in scopes if all(v in place for v in scope)]).reshape(-1, 2)
    graph = csr_array((np.ones(len(pairs)), pairs.T), shape=(len(region), len(region)))
    through = np.zeros(len(region), dtype=np.int64)
    for start in range(len(region)):
        order, before = breadth_first_order(graph, start, directed=False)
        paths = np.ones(len(region), dtype=np.int64)
        for v in order[:0:-1]:
            paths[before[v]] += paths[v]
        through[order[1:]] += paths[order[1:]] - 1
    return dict(zip(region, through.tolist(), strict=True))


def _cases(bounds: Table) -> Table:
    """Return the case of every state."""
    cases = np.full(len(bounds), CASES - 1)
    likeliest = np.argsort(bounds, kind="stable")[: CASES - 1]
    cases[likeliest] = np.arange(len(likeliest))
    return cases
