"""Pairwise relaxations: what a term of three and more variables costs at least, as terms of two.

Fetches that a backward group shares couple several strategies and a layout, which makes tables large. The union of
what its nodes fetch is at least the mean of what each fetches alone, and that is a sum of terms of two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb, lcm

from msgspec import Struct
from msgspec.structs import replace

from planner.plans.check import MOST_BYTES, most_moved_bytes
from planner.search.coarse.coarsen import CoarseGraph, Factor
from planner.search.costs.cost import Cost, FetchCost
from planner.search.costs.tables import Scope, Tables, Term
from planner.search.solver.problem import Problem, simplified_problem

Key = tuple[Scope, Cost]


class BackwardGroup(Struct, frozen=True):
    """Nodes that share a fetch, which counts `times`.

    `scope` is (node..., tensor); `costs` are the terms of inclusion and exclusion, by positions of nodes.
    """

    scope: Scope
    costs: Mapping[tuple[int, ...], Cost]
    times: int

    @property
    def node_count(self) -> int:
        """How many nodes share the fetch."""
        return len(self.scope) - 1

    def fetch_shared_by(self, nodes: Sequence[int]) -> SharedFetch:
        """Return what some of the nodes share, counted so that over all choices of as many nodes it is not more."""
        costs = {tuple(map(nodes.index, key)): cost for key, cost in self.costs.items() if set(key) <= set(nodes)}
        scope = (*(self.scope[node] for node in nodes), self.scope[-1])
        return SharedFetch(scope, costs, self.times // (comb(self.node_count, len(nodes)) * len(nodes)))


class SharedFetch(Struct, frozen=True):
    """What a shared fetch costs beyond the mean of what its nodes would fetch alone, times `times` * their number.

    `scope` and `costs` as in `BackwardGroup`.
    """

    scope: Scope
    costs: Mapping[tuple[int, ...], Cost]
    times: int


class RelaxedFetches(Struct, frozen=True):
    """A coarse graph without shared fetches in which no choice costs more than `scale` times what it did.

    Each node pays an equal part of what it would fetch alone; what a group's fetch costs beyond that is left out.
    """

    coarse: CoarseGraph
    scale: int
    groups: tuple[BackwardGroup, ...]


def relaxed_fetches(coarse: CoarseGraph, workers: int) -> RelaxedFetches | None:
    """Return a graph without shared fetches, None where factors are not inclusion and exclusion of whole groups.

    Nodes' parts are whole numbers; where scaled costs might not stay within 64 bits they are rounded down instead.
    """
    weights: Counter[Key] = Counter()
    for factor in coarse.factors:
        weights[factor.scope, factor.cost] += factor.weight
    shared = sorted((key for key in weights if is_shared_fetch(key[0])), key=lambda key: -len(key[0]))
    if not all(isinstance(cost, FetchCost) for _, cost in shared):
        return None
    scale = lcm(*((len(scope) - 1) * (len(scope) - 2) for scope, _ in shared))
    if scale * most_moved_bytes(coarse.graph, workers) > MOST_BYTES:
        scale = 1
    scaled: Counter[Key] = Counter()
    groups = []
    for scope, cost in shared:
        weight, nodes = weights[scope, cost], range(len(scope) - 1)
        subsets = [chosen for size in range(1, len(scope)) for chosen in combinations(nodes, size)]
        parts = {chosen: _fetch_by_part_of_group(scope, cost, chosen) for chosen in subsets}
        for chosen, part in parts.items():
            weights[part] -= weight
            if len(chosen) == 1:
                scaled[part] += weight * scale // len(nodes)
        if weight > 0:
            groups.append(BackwardGroup(scope, {chosen: fetch for chosen, (_, fetch) in parts.items()}, weight * scale))
    if any(weight < 0 for weight in weights.values()):
        return None
    for key, weight in weights.items():
        scaled[key] += weight * scale
    factors = tuple(Factor(scope, cost, weight, 1) for (scope, cost), weight in scaled.items() if weight)
    return RelaxedFetches(replace(coarse, factors=factors), scale, tuple(groups))


def is_shared_fetch(scope: Scope) -> bool:
    """Whether a factor couples the strategies of several variables and a layout."""
    return len(set(scope)) > 2


def _fetch_by_part_of_group(scope: Scope, cost: Cost, chosen: Sequence[int]) -> Key:
    if not isinstance(cost, FetchCost):
        raise TypeError("only fetches are shared")
    nodes = tuple(cost.nodes[i] for i in chosen)
    operands = tuple(cost.operands[i] for i in chosen) if cost.operands else ()
    return (*(scope[i] for i in chosen), scope[-1]), FetchCost(cost.shape, nodes, operands)


def pairwise_relaxation(problem: Problem) -> Problem:
    """Return a problem with terms of at most two variables in which no choice costs more.

    A large term first takes in the terms within its scope. It is then charged to the pairs that one of its variables
    makes with the others, in equal parts; that variable is the one for which this loses least.
    """
    whole = problem_with_small_terms_absorbed(problem)
    terms: list[Term] = []
    for scope, number in whole.terms:
        if len(scope) <= 2:
            terms.append((scope, number))
            continue
        for axes, part in _pairs_that_lose_least(problem.tables, number):
            terms.append(((scope[axes[0]], scope[axes[1]]), part))
    return simplified_problem(Problem(problem.tables, problem.sizes, tuple(terms), problem.constant))


def _pairs_that_lose_least(tables: Tables, number: int) -> list[tuple[tuple[int, int], int]]:
    rank = tables[number].ndim
    stars = []
    for common in range(rank):
        pairs = [(min(axis, common), max(axis, common)) for axis in range(rank) if axis != common]
        stars.append([(pair, tables.minimum_over_other_axes(number, pair, rank - 1)) for pair in pairs])
    return max(stars, key=lambda parts: sum(float(tables[part].mean()) for _, part in parts))


def problem_with_small_terms_absorbed(problem: Problem) -> Problem:
    """Return the same problem with terms of several variables added to the first larger term that spans theirs."""
    large: dict[Scope, list[tuple[Scope, int]]] = {}
    spanning: dict[int, list[Scope]] = defaultdict(list)
    left: list[Term] = []
    for scope, number in sorted(problem.terms, key=lambda term: -len(term[0])):
        home = next((other for other in spanning[scope[0]] if set(scope) < set(other)), None) if scope else None
        if home is not None and len(scope) > 1:
            large[home].append((scope, number))
        elif scope in large:
            large[scope].append((scope, number))
        elif len(scope) > 2:
            large[scope] = [(scope, number)]
            for v in scope:
                spanning[v].append(scope)
        else:
            left.append((scope, number))
    for scope, parts in large.items():
        places = tuple((number, tuple(scope.index(v) for v in part)) for part, number in parts)
        left.append((scope, problem.tables.sum_of_terms(places, len(scope))))
    return Problem(problem.tables, problem.sizes, tuple(sorted(left)), problem.constant)
