"""The joint search: all steps at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import prod

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

import tdl
from planner.graph.disjoint_sets import DisjointSets
from planner.layout import Placement, Shard
from planner.search.coarse import CoarseGraph
from planner.search.costs.cost import Cost, FetchCost
from planner.search.costs.domains import Domain, Reach
from planner.search.costs.tables import Tables
from planner.search.costs.volumes import Need, output_reach
from planner.search.solver import Solution, minimise
from planner.search.solver.model import Model
from planner.search.solver.problem import Limits, problem_of_graph
from planner.search.space import Outcome, Space, State
from tensor_partitioner.display import progress, tracked

# The recursion: one step after the other, each exactly, at its conditional cost (Tofu Sec 5.2, corrected).
#
# A step is charged cost(steps 1..i) - cost(steps 1..i-1) with the choices of earlier steps fixed. So everything that
# an earlier step made a group fetch is counted in full. The subtracted term is constant within the step.


def recursive(space: Space, limits: Limits) -> Outcome:
    """Choose step by step; each step is exact within the limits.

    The sequence of steps need not be optimal, so there is a lower bound only for a single step. Under placements S,R,P
    the plan is the better of this and the recursion under S,R.
    """
    count = len(space.coarse.variables)
    choice: list[State] = [()] * count
    width, largest, total = 0, 0, 0 if space.ways else space.cost(choice)
    bound = None if space.ways else total
    for step in tracked("steps", range(len(space.ways))):
        domains, solution = _step_candidates_and_best(space, choice, step, limits)
        choice = [domain.states[state] for domain, state in zip(domains, solution.states, strict=True)]
        order, total = solution.order, solution.value
        width, largest = max(width, order.width), max(largest, order.largest_bytes)
        bound = max(0, solution.bound) if len(space.ways) == 1 else None
    details = {"width": width, "largest_table_bytes": largest}
    outcome = Outcome(tuple(choice), total, bound, details)
    plain = space.without_optional_partial_sums()
    if plain is None:
        return outcome
    best = min(outcome, recursive(plain, limits), key=lambda outcome: outcome.cost)
    return replace(best, lower_bound=bound)


def _step_candidates_and_best(
    space: Space, choice: Sequence[State], step: int, limits: Limits
) -> tuple[list[Domain], Solution]:
    """Return a step's candidates and the best of them; partial sums must beat the best choice without them."""
    domains = [
        space.domain(v, [(*before, option) for option in space.options(v, step)], step + 1)
        for v, before in enumerate(choice)
    ]
    plain = space.without_optional_partial_sums()
    if plain is None:
        return domains, minimise(Model(space.problem_of_domains(domains)), limits)
    candidates, known = _step_candidates_and_best(plain, choice, step, limits)
    start = [
        domain.states.index(candidate.states[state])
        for domain, candidate, state in zip(domains, candidates, known.states, strict=True)
    ]
    return domains, minimise(Model(space.problem_of_domains(domains, known.value)), limits, start)


# States that can represent others: replace axes that a plan hardly uses by axes beside them that it uses.
#
# A plan that splits images between workers seldom splits their rows as well, in any operator: splitting images saves
# as much. Axes are followed through the whole graph, from tensor to operator to tensor; a decision about an axis,
# such as all rows, then holds wherever the axis occurs.


HARDLY = 0.05
"""A plan hardly uses an axis if it chooses the axis for at most this fraction of the variables that have it."""

Option = Placement | str
"""Option of a variable's state at a step: here a dimension of a tensor, or an index variable of a node."""

Occurrence = tuple[int, Option]
"""An axis at a variable."""

Reads = Mapping[Option, frozenset[Option]]
"""For each index variable of a node, the dimensions of a tensor that it indexes."""


def representatives_of_states(
    coarse: CoarseGraph, domains: Sequence[Domain], choice: Sequence[Sequence[object]]
) -> list[NDArray[np.intp]]:
    """Return the representative of every state, by number, per variable: [state]; a state may represent itself.

    `choice` is a plan: a state per variable. An axis that the plan hardly uses is replaced by the used axis that occurs
    beside it most often, wherever that axis indexes everything that the replaced one does.
    """
    indexed = _dimensions_indexed_by_node_and_tensor(coarse)
    instead = _replacements_of_hardly_used_axes(_axes_followed_through_graph(indexed), choice)
    _drop_inconsistent_replacements(instead, indexed)
    keys = [(domain, tuple(instead.get(v, {}).items())) for v, domain in enumerate(domains)]
    representatives = {key: _representatives_of_domain_states(key[0], dict(key[1])) for key in dict.fromkeys(keys)}
    return [representatives[key] for key in keys]


def _representatives_of_domain_states(domain: Domain, instead: Mapping[Option, Option]) -> NDArray[np.intp]:
    """Return the representative of every state: [state]."""
    number = {state: i for i, state in enumerate(domain.states)}
    others = (tuple(instead.get(option, option) for option in state) for state in domain.states)
    return np.array([number.get(other, i) for i, other in enumerate(others)], dtype=np.intp)


def _dimensions_indexed_by_node_and_tensor(coarse: CoarseGraph) -> dict[tuple[int, int], Reads]:
    """Return, per node and tensor that it reads or writes, which dimensions its variables index."""
    indexed: dict[tuple[int, int], dict[Option, set[Option]]] = defaultdict(lambda: defaultdict(set))
    for factor in coarse.factors:
        if len(factor.scope) == 2:
            node, tensor = factor.scope
            for need in _needs_read_or_written(factor.cost):
                for dim, reach in enumerate(need):
                    for name in _leading_variables_of_reach(reach):
                        indexed[node, tensor][name].add(Shard(dim))
    return {pair: {name: frozenset(dims) for name, dims in reads.items()} for pair, reads in indexed.items()}


def _needs_read_or_written(cost: Cost) -> Iterable[Need]:
    return cost.nodes[0] if isinstance(cost, FetchCost) else (output_reach(cost.signature, cost.output),)


def _leading_variables_of_reach(reach: Reach) -> Iterator[str]:
    """Yield the variables that determine in which part of a dimension an access lies, without a number's low digits."""
    for index in reach.indices:
        if isinstance(index, tdl.Digits):
            yield from index.variables[:1]
        elif isinstance(index, tdl.Affine):
            yield from index.variables


def _axes_followed_through_graph(indexed: Mapping[tuple[int, int], Reads]) -> list[list[Occurrence]]:
    """Return all axes: sets of occurrences that index each other."""
    pairs = [
        ((node, name), (tensor, dim))
        for (node, tensor), reads in indexed.items()
        for name, dims in reads.items()
        for dim in sorted(dims, key=str)
    ]
    return DisjointSets.of_pairs(pairs).sets()


def _replacements_of_hardly_used_axes(
    axes: Sequence[Sequence[Occurrence]], choice: Sequence[Sequence[object]]
) -> dict[int, dict[Option, Option]]:
    """Return, per variable, the replacement of each replaced option."""
    at: dict[int, list[int]] = defaultdict(list)
    first: list[dict[int, Option]] = [{} for _ in axes]
    used: list[bool] = []
    for number, axis in enumerate(axes):
        for v, option in axis:
            if v not in first[number]:
                first[number][v] = option
                at[v].append(number)
        chosen = {v for v, option in axis if option in choice[v]}
        used.append(len(chosen) > HARDLY * len(first[number]))
    instead: dict[int, dict[Option, Option]] = defaultdict(dict)
    for number, axis in enumerate(axes):
        if used[number]:
            continue
        beside = Counter(other for v in first[number] for other in at[v] if used[other])
        if beside:
            other, _ = beside.most_common(1)[0]
            for v, option in axis:
                if v in first[other]:
                    instead[v][option] = first[other][v]
    return instead


def _drop_inconsistent_replacements(
    instead: dict[int, dict[Option, Option]], indexed: Mapping[tuple[int, int], Reads]
) -> None:
    """Drop replacements of index variables by variables that do not index everything that these do."""
    for (node, tensor), reads in indexed.items():
        for name, other in list(instead.get(node, {}).items()):
            dims = {instead.get(tensor, {}).get(dim, dim) for dim in reads.get(name, ())}
            if not dims <= reads.get(other, frozenset()):
                del instead[node][name]


# The joint search.


ITEM_BYTES = 8
TABLES_PART = 8
"""The tables of pairs may take 1 / TABLES_PART of the memory limit."""

MOST_ENTRIES = 5e8
"""Largest number of entries that one pass of messages over all pairs may visit: seconds of a search of minutes."""


def joint(space: Space, limits: Limits) -> Outcome:
    """Choose all steps together; no plan of the space costs less if the cost equals the lower bound.

    The result is never worse than the recursion's. If the tables over all steps do not fit, it is the recursion's
    result, without a lower bound.
    """
    recursion = recursive(space, limits)
    if not pair_tables_fit_in_memory(space, limits):
        return recursion
    candidates = [space.candidates(v) for v in range(len(space.coarse.variables))]
    with progress("searching all steps at once", 1):
        together = best_plan_among_candidates(space, candidates, limits, recursion.choice)
    best = min(together, recursion, key=lambda outcome: outcome.cost)
    return Outcome(best.choice, best.cost, together.lower_bound, {**together.details, "recursive_cost": recursion.cost})


def pair_tables_fit_in_memory(space: Space, limits: Limits) -> bool:
    """Return True if the tables of pairs of variables over all steps fit in the memory limit and are not too many.

    A table of nodes of one variable has an axis for each node until its diagonal is taken.
    """
    steps, count = range(len(space.ways)), len(space.coarse.variables)
    sizes = [prod(len(space.options(v, step)) for step in steps) for v in range(count)]
    distinct, entries = {}, 0
    for factor in space.coarse.factors:
        is_shared = len(set(factor.scope)) > 2  # a fetch that several nodes share: only its pairs count
        scope = (factor.scope[0], factor.scope[-1]) if is_shared else factor.scope
        table = prod(sizes[v] for v in scope)
        distinct[factor.cost, *(sizes[v] for v in factor.scope)] = table
        entries += table
    return entries <= MOST_ENTRIES and sum(distinct.values()) * ITEM_BYTES * TABLES_PART <= limits.memory_bytes


def best_plan_among_candidates(
    space: Space, candidates: Sequence[Sequence[State]], limits: Limits, start: Sequence[State] | None = None
) -> Outcome:
    """Return the best plan whose variables' states are among the candidates; `start` is one of these plans."""
    domains = [space.domain(v, states) for v, states in enumerate(candidates)]
    known = None if start is None or space.partial_sums is None else space.cost(start)
    model = Model(problem_of_graph(space.coarse, domains, Tables(), space.feasible_objective(known)))
    if start is None:
        return Outcome.of_solution(domains, minimise(model, limits))
    numbers = [domain.states.index(state) for domain, state in zip(domains, start, strict=True)]
    groups = cache(partial(representatives_of_states, space.coarse, domains, start))
    return Outcome.of_solution(domains, minimise(model, limits, numbers, groups))
