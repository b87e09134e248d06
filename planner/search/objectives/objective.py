"""Objectives: what a plan is to have least of, as cost tables for the solver."""

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
    """A cost table of the variables in `scope`, by number, that counts `times`."""

    scope: Scope
    table: int
    times: int


class Objective(Protocol):
    """What the search makes least, in whole units.

    `everywhere`: any operator may be computed by all (`*`), as the objective makes computing twice cost something.
    """

    @property
    def allows_everywhere(self) -> bool:
        """Whether any operator may be computed by all workers at a step."""
        ...

    def priced_tables(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Iterator[Priced]:
        """Yield the tables whose sum is the cost of a choice of states; a factor's axes are in its scope's order."""
        ...


class Extended(Struct, frozen=True, eq=False):
    """Another objective with something added to it."""

    objective: Objective

    @property
    def allows_everywhere(self) -> bool:
        """Whether any operator may be computed by all workers at a step."""
        return self.objective.allows_everywhere


class Bytes(Struct, frozen=True):
    """Bytes that move in one iteration, summed over workers."""

    allows_everywhere: bool = False

    def priced_tables(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Iterator[Priced]:
        """Yield every factor's bytes."""
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
