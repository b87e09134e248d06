"""Objectives: the quantity to minimize, as cost tables for the solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from msgspec import Struct

from planner.search.coarse.coarsen import CoarseGraph, Factor
from planner.search.costs.domains import Domain, Layouts, Strategies
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
        ...

    def priced_tables(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Iterator[Priced]:
        """Yield the tables whose sum is the cost of a choice of states; axes are in the order of a factor's scope."""
        ...


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
