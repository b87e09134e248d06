"""States that can represent others: replace axes that a plan hardly uses by axes beside them that it uses.

A plan that splits images between workers seldom splits their rows as well, in any operator: splitting images saves as
much. Axes are followed through the whole graph, from tensor to operator to tensor; a decision about an axis, such as
all rows, then holds wherever the axis occurs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import tdl
from planner.layout import Placement, Shard
from planner.search.coarse.coarsen import CoarseGraph
from planner.search.coarse.disjoint import DisjointSets
from planner.search.costs.cost import Cost, FetchCost
from planner.search.costs.counts import Reach
from planner.search.costs.domains import Domain
from planner.search.costs.needs import Need, output_reach

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
    axes: dict[int, list[Occurrence]] = defaultdict(list)
    for occurrence, number in DisjointSets.of_pairs(pairs).set_numbers().items():
        axes[number].append(occurrence)
    return list(axes.values())


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
