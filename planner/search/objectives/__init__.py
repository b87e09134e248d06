"""Objectives: the quantity to minimize, as cost tables for the solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Protocol

import numpy as np
from msgspec import Struct

from planner.graph.ir import ITEM_BYTES
from planner.graph.micro_batches import copies_stored, in_order_of_phases, phases_of_nodes
from planner.search.coarse import CoarseGraph, Factor
from planner.search.costs.domains import Domain, Layouts, Strategies, leading_step_masks, product_of_ways_by_mask
from planner.search.costs.tables import Scope, Table, Tables


class Priced(Struct, frozen=True):
    """A cost table over the variables numbered in `scope`, counted `times` times."""

    scope: Scope
    table: int
    times: int


class Objective(Protocol):
    """The quantity that the search minimizes, in whole units."""

    @property
    def allows_everywhere(self) -> bool:
        """True if any operator may be computed by all workers (`*`) at a step, because repeated work has a cost."""

    def priced_tables(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Iterator[Priced]:
        """Yield the tables whose sum is the cost of a choice of states; axes are in the order of a factor's scope."""


class Extended(Struct, frozen=True, eq=False):
    """Another objective with an additional cost."""

    objective: Objective

    @property
    def allows_everywhere(self) -> bool:
        """True if any operator may be computed by all workers at a step."""
        return self.objective.allows_everywhere


class Bytes(Struct, frozen=True):
    """Bytes moved in one iteration, summed over workers."""

    allows_everywhere: bool = False

    def priced_tables(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Iterator[Priced]:
        """Yield the bytes of every factor."""
        for factor in coarse.factors:
            strategies, layouts, key = domains_of_factor(factor, domains)
            numbers = tables.remembered_tables(key, partial(_tables_of_bytes_moved, factor, strategies, layouts))
            yield Priced(factor.scope, numbers[0], factor.weight)


BYTES = Bytes()


def _tables_of_bytes_moved(factor: Factor, strategies: Sequence[Strategies], layouts: Layouts) -> list[Table]:
    return [np.asarray(factor.cost.table(strategies, layouts), dtype=np.int64)]


def domains_of_factor(
    factor: Factor, domains: Sequence[Domain]
) -> tuple[list[Strategies], Layouts, tuple[object, ...]]:
    """Return the domains of a factor's nodes and of its tensor, and a key that is equal for equal tables."""
    of_scope = tuple(domains[v] for v in factor.scope)
    strategies = [domain for domain in of_scope if isinstance(domain, Strategies)]
    layouts = of_scope[-1]
    if not isinstance(layouts, Layouts):
        raise TypeError("a factor's last variable is a tensor")
    return strategies, layouts, (factor.cost, of_scope)


# Storage of plans: what every plan stores at an iteration's peak, and the price of stored bytes.


def resident_item_bytes_by_variable(coarse: CoarseGraph) -> Mapping[int, int]:
    """Return what every plan stores at an iteration's peak: bytes per element, by variable.

    This covers every input, weight and state, and the results that were written before and are read after. Two units of
    computation lie between, so these results exist only where they are stored. Results that only add to a sum are left
    out, and so are updated weights, which replace their old values.
    """
    graph, spans = coarse.graph, _storage_spans_of_results(coarse)
    moments = max((last for _, last in spans.values()), default=0) + 1
    alive = np.zeros(moments + 1, dtype=np.int64)
    for name, (first, last) in spans.items():
        alive[first] += graph.tensors[name].nbytes
        alive[last + 1] -= graph.tensors[name].nbytes
    fullest = int(np.cumsum(alive).argmax())
    kept = [name for name, tensor in graph.tensors.items() if tensor.init is not None]
    kept += [name for name, (first, last) in spans.items() if first <= fullest <= last]
    item_bytes: dict[int, int] = {}
    for name in kept:
        v = coarse.variable_of["tensor", name]
        item_bytes[v] = item_bytes.get(v, 0) + copies_stored(graph, name) * ITEM_BYTES[graph.tensors[name].dtype]
    return item_bytes


def _storage_spans_of_results(coarse: CoarseGraph) -> dict[str, tuple[int, int]]:
    """Return the first and last moment at which a result is certainly stored, for results that have one.

    Moments count the operators that are a separate unit in every plan. A reader that shares its fetch with an earlier
    reader of its backward group may use that fetch instead.
    """
    graph = coarse.graph
    updated = set(graph.updates.values())
    terms = {node.inputs[n] for node in graph.nodes for n in coarse.as_terms.get(node.name, ())}
    written_at: dict[str, int] = {}
    spans: dict[str, tuple[int, int]] = {}
    groups: dict[tuple[str, str], int] = {}
    moment = 0
    for node in in_order_of_phases(graph.nodes, phases_of_nodes(graph)):
        if not coarse.signatures[node.name].description.is_elementwise:
            moment += 1
        for name in node.inputs:
            first = groups.setdefault((node.forward or node.name, name), moment)
            if name in written_at and first == moment and moment - 2 >= written_at[name] + 2:
                spans[name] = (written_at[name] + 2, moment - 2)
        written_at |= {name: moment for name in node.outputs if name not in updated and name not in terms}
    return spans


class PricedStorage(Extended, frozen=True, eq=False):
    """Another objective, in units 2^-shift as large, plus a price for every byte stored on some worker.

    `items` are bytes per element by variable of `coarse`; the prices carry over to graphs with more ties.
    """

    coarse: CoarseGraph
    shift: int
    price: int
    items: Mapping[int, int]

    def priced_tables(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Iterator[Priced]:
        """Yield the other objective's tables and the price of what is stored."""
        for priced in self.objective.priced_tables(coarse, domains, tables):
            yield Priced(priced.scope, priced.table, priced.times << self.shift)
        for item_of, item in self.items.items():
            v = coarse.variable_of["tensor", self.coarse.variables[item_of].members[0]]
            yield Priced((v,), _table_of_stored_elements(domains[v], tables), self.price * item)


def least_bytes_stored(items: Mapping[int, int], domains: Mapping[int, Domain], tables: Tables) -> int:
    """Return the fewest bytes that all workers together store of these variables, over all states."""
    return sum(item * int(tables[_table_of_stored_elements(domains[v], tables)].min()) for v, item in items.items())


def _table_of_stored_elements(domain: Domain, tables: Tables) -> int:
    if not isinstance(domain, Layouts):
        raise TypeError("only tensors are stored")
    return tables.remembered_tables(("stored", domain), partial(_stored_elements, domain))[0]


def _stored_elements(layouts: Layouts) -> list[Table]:
    """Return the elements that all workers together hold: [layout].

    An element has one digit, and so one holder, at a step that shards it; at other steps every worker holds it.
    """
    sharded = np.bitwise_or.reduce(layouts.sharded, axis=0, initial=0)
    others = leading_step_masks(layouts.ways)[-1] & ~sharded
    return [product_of_ways_by_mask(layouts.ways)[others] * prod(layouts.shape)]
