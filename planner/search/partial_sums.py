"""Decide which results may stay partial, and which nodes carry their terms on.

Under any placements, results may stay partial if they are added up before any of them moves (`operands_as_terms`);
under S,R,P, every result that can. A result may stay partial at a step if every node that computes it can sum there and
either nobody reads it or some reader can carry its terms on. Such a reader is linear in the operands through which it
reads the result, taken together with others that may be partial as well. Inputs, weights, optimizer state, their
updates, and metrics are never partial. Nor are results that every reader would have to add up: adding them up once is
cheaper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations

from msgspec import Struct

import tdl
from planner.errors import PlanError
from planner.graph.ir import Node
from planner.layout import TERMS, Signature, Ways, eligible
from planner.search.coarse import CoarseGraph, Coarsenings, Factor, NodeVariable, TensorVariable, Ties
from planner.search.costs.domains import Domain, Layouts, Strategies
from planner.search.costs.tables import Table, Tables
from planner.search.objectives import Extended, Priced, domains_of_factor

# Linearity: the operands that an operator may read as partial sums, taken together.


FEW_OPERANDS = 6
"""Up to this many operands every subset is tried; for more, each operand alone and all together."""


def linear_sets(description: tdl.Description) -> tuple[frozenset[int], ...]:
    """Return the sets of operand positions in which, taken together, every result is linear; small sets first."""
    everything = range(len(description.operands))
    sizes: Iterable[int] = dict.fromkeys((1, len(everything)))
    if len(everything) <= FEW_OPERANDS:
        sizes = range(1, len(everything) + 1)
    candidates = (frozenset(chosen) for size in sizes for chosen in combinations(everything, size))
    return tuple(chosen for chosen in candidates if description.linear(chosen))


# Decide which results may stay partial, and which nodes carry their terms on.


Operands = frozenset[int]


class PartialSums(Struct, frozen=True, eq=False):
    """Per step: variables of tensors that may be partial, and sets of operands whose terms nodes may carry.

    `fewer` holds what is allowed under any placements, if that is less.
    """

    partial: tuple[frozenset[int], ...]
    carried: tuple[Mapping[int, tuple[Operands, ...]], ...]
    fewer: PartialSums | None = None


class _Flow(Struct, frozen=True, eq=False):
    """What each variable of nodes reads, as sets of operands and the variables behind them, and what computes what."""

    makers: Mapping[int, frozenset[int]]
    reads: Mapping[int, Mapping[Operands, frozenset[int]]]
    through: Mapping[int, frozenset[tuple[int, Operands]]]


def partial_sums_of(coarse: CoarseGraph, ways: Ways, *, anything: bool) -> PartialSums:
    """Return what may be partial and carried at each step: everything possible, or only what any placements allow."""
    flow = _data_flow(coarse, anything=anything)
    possible = _tensor_variables_possibly_partial(coarse) if anything else _variables_read_as_terms(coarse)
    steps = [_partial_sums_at_last_step(coarse, flow, possible, ways.prefix(step + 1)) for step in range(len(ways))]
    fewer = partial_sums_of(coarse, ways, anything=False) if anything else None
    return PartialSums(tuple(kept for kept, _ in steps), tuple(carried for _, carried in steps), fewer)


def may_be_partial(coarsenings: Coarsenings, ways: Ways) -> frozenset[str]:
    """Return the names of tensors that may be partial at some step if no tensors are tied."""
    coarse = coarsenings.of(Ties(elementwise=False, updates=False, unrolled=False))
    steps = partial_sums_of(coarse, ways, anything=True).partial
    return frozenset(name for v in frozenset().union(*steps) for name in coarse.variables[v].members)


def _tensor_variables_possibly_partial(coarse: CoarseGraph) -> frozenset[int]:
    """Return the variables of tensors that are all results read by nodes only."""
    graph, of = coarse.graph, coarse.variable_of
    shown = {*graph.updates, *graph.updates.values(), *graph.metrics.values()}
    shown.update(name for name, tensor in graph.tensors.items() if tensor.init is not None)
    tensors = (v for v, variable in enumerate(coarse.variables) if isinstance(variable, TensorVariable))
    return frozenset(tensors) - {of["tensor", name] for name in shown}


def _variables_read_as_terms(coarse: CoarseGraph) -> frozenset[int]:
    """Return the variables of tensors that are all read as terms under any placements."""
    terms = {node.inputs[n] for node in coarse.graph.nodes for n in coarse.as_terms.get(node.name, ())}
    variables = {coarse.variable_of["tensor", name] for name in terms}
    return frozenset(v for v in variables if terms.issuperset(coarse.variables[v].members))


@lru_cache(maxsize=2)
def _data_flow(coarse: CoarseGraph, *, anything: bool) -> _Flow:
    """Return which nodes write each variable, and which read it and could carry its terms on."""
    of = coarse.variable_of
    makers: dict[int, set[int]] = defaultdict(set)
    reads: dict[int, dict[Operands, set[int]]] = defaultdict(lambda: defaultdict(set))
    through: dict[int, set[tuple[int, Operands]]] = defaultdict(set)
    for node in coarse.graph.nodes:
        mine = of["node", node.name]
        for name in node.outputs:
            makers[of["tensor", name]].add(mine)
        operands: dict[int, set[int]] = defaultdict(set)
        for operand, name in enumerate(node.inputs):
            operands[of["tensor", name]].add(operand)
        for chosen in _sets_of_terms(coarse, node, anything=anything):
            reads[mine][chosen].update(of["tensor", node.inputs[operand]] for operand in chosen)
        for tensor, positions in operands.items():
            through[tensor].add((mine, frozenset(positions)))
    return _Flow(
        {v: frozenset(nodes) for v, nodes in makers.items()},
        {v: {chosen: frozenset(behind) for chosen, behind in sets.items()} for v, sets in reads.items()},
        {v: frozenset(readers) for v, readers in through.items()},
    )


def _sets_of_terms(coarse: CoarseGraph, node: Node, *, anything: bool) -> Sequence[Operands]:
    """Return the sets of operands through which a node could read terms."""
    if node.name in coarse.as_terms:
        return [coarse.as_terms[node.name]]
    return linear_sets(coarse.signatures[node.name].description) if anything else ()


def _partial_sums_at_last_step(
    coarse: CoarseGraph, flow: _Flow, possible: frozenset[int], ways: Ways
) -> tuple[frozenset[int], dict[int, tuple[Operands, ...]]]:
    """Return what may be partial and carried at the last of these steps: the greatest fixed point of the rules."""
    summing = {
        v
        for v, variable in enumerate(coarse.variables)
        if isinstance(variable, NodeVariable) and _node_can_sum_at_last_step(variable.signature, ways)
    }
    left = possible
    while True:
        carried = {
            v: carriable
            for v, sets in flow.reads.items()
            if (carriable := tuple(chosen for chosen, behind in sets.items() if behind <= left))
        }
        kept = frozenset(
            v
            for v in left
            if all(maker in summing or maker in carried for maker in flow.makers.get(v, ()))
            and (
                v not in flow.through
                or any(operands <= chosen for node, operands in flow.through[v] for chosen in carried.get(node, ()))
            )
        )
        if kept == left:
            return left, carried
        left = kept


def _node_can_sum_at_last_step(signature: Signature, ways: Ways) -> bool:
    return any(
        how.reducer == "Sum" and eligible(signature.extents[name], ways, len(ways) - 1)
        for name, how in signature.description.strategies.items()
    )


INFEASIBLE = 1 << 52
"""Minimum cost of an infeasible plan, if no better bound is known."""

MOST_PENALTIES = 1 << 56
"""Upper limit of the sum of all penalties; bounds multiply costs by up to 2^6."""


class Feasible(Extended, frozen=True):
    """Another objective in which every infeasible pair of choices costs more than a known plan.

    So no best plan contains such a pair. Sums of all penalties fit in 64 bits (see `penalty_above_cost`).
    """

    penalty: int

    def priced_tables(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Iterator[Priced]:
        """Yield the other objective's tables and the penalties."""
        yield from self.objective.priced_tables(coarse, domains, tables)
        with_terms = {v for v, domain in enumerate(domains) if _has_terms(domain)}
        for factor in coarse.factors:
            if with_terms.isdisjoint(factor.scope):
                continue
            strategies, layouts, key = domains_of_factor(factor, domains)
            numbers = tables.remembered_tables(
                ("infeasibility_flags", *key), partial(_infeasibility_flags, factor, strategies, layouts)
            )
            if numbers:
                yield Priced(factor.scope, numbers[0], self.penalty)


def _has_terms(domain: Domain) -> bool:
    """Return True if some state leaves a tensor partial at a step, or carries terms."""
    if isinstance(domain, Strategies):
        return any(choice.startswith(TERMS) for choice in domain.masks)
    return bool(domain.partial.any())


def _infeasibility_flags(factor: Factor, strategies: Sequence[Strategies], layouts: Layouts) -> list[Table]:
    flags = factor.cost.infeasibility_flags(strategies, layouts)
    return [] if flags is None else [flags]


def penalty_above_cost(coarse: CoarseGraph, cost: int) -> int:
    """Return a penalty above a plan's cost; raise PlanError if the sum of penalties would not fit in 64 bits."""
    most = MOST_PENALTIES // max(1, len(coarse.factors))
    if cost >= most:
        raise PlanError(
            f"partial sums can be searched only for plans that cost less than {most}, found {cost}: search with "
            "placements S,R"
        )
    return cost + 1
