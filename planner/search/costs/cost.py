"""Exact costs in elements moved, as tables over candidate strategies and layouts (docs/explanation/transfers.md).

Reading: the sources that share a worker's digits at the replicated steps tile the tensor, so a worker fetches what it
needs and does not own: |need| - |need n own|. Writing: an owner pulls its tile from every partial result, or partial
results are first reduced to shares and the shares fetched. All of these volumes are products over dimensions of the
counts in `counts.py`. Where no count depends on the worker they equal the design's closed forms.

Partial tensors: a reader that does not carry the terms on fetches all of them, so |need| counts once per term; a result
that stays partial is not reduced. The cost tables do not encode feasibility; `infeasibility_flags` do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, product

import numpy as np
from msgspec import Struct

from planner.layout import Signature
from planner.search.costs.counts import product_of_ways_by_mask
from planner.search.costs.domains import Layouts, Strategies
from planner.search.costs.level_traffic import FetchTraffic, LevelTraffic, shared_fetch_flags
from planner.search.costs.needs import Need
from planner.search.costs.store_cost import elements_moved_to_store, store_level_traffic
from planner.search.costs.tables import Table
from planner.search.costs.volumes import Volumes, volume_not_owned


class FetchCost(Struct, frozen=True):
    """Fetches of one tensor by one or more nodes; `nodes` holds each node's distinct needs of it.

    With one node this is the cost of its fetch. With several nodes of a backward group it is what fetching the union
    saves or adds over the fetches of smaller groups: the inclusion-exclusion term in which all of them occur.
    `operands` holds, per node, the operands through which it reads the tensor; required if the tensor may be partial.
    """

    shape: tuple[int, ...]
    nodes: tuple[tuple[Need, ...], ...]
    operands: tuple[tuple[int, ...], ...] = ()

    def table(self, strategies: Sequence[Strategies], layouts: Layouts) -> Volumes:
        """Return the elements moved: [strategy of each node..., layout]."""
        carried, sign = self._steps_carrying_tensor_by_node(strategies, layouts), (-1) ** (len(self.nodes) - 1)
        if carried is None and all(len(needs) == 1 for needs in self.nodes):
            volume = volume_not_owned(self.nodes, strategies, layouts)
            return volume if sign > 0 else -volume
        terms = (
            None
            if carried is None
            else product_of_ways_by_mask(layouts.ways)[layouts.partial & ~carried[-1][..., None]]
        )
        total: Table = np.zeros((*(len(s.states) for s in strategies), len(layouts.states)), dtype=np.int64)
        for chosen in product(*(list(_subsets_of_needs(needs)) for needs in self.nodes)):
            more = sum(len(needs) - 1 for needs in chosen)
            total += sign * (-1) ** more * volume_not_owned(chosen, strategies, layouts, terms)
        return total if carried is None else np.where(shared_fetch_flags(carried, layouts), total, 0)

    def infeasibility_flags(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table | None:
        """Return 1 where a node carries terms of a tensor that is not partial, or carries terms but not this tensor's.

        The shape is [strategy of each node..., layout]. Return None if nothing is infeasible.
        """
        if len(self.operands) != 1:
            return None
        carries, without = strategies[0].steps_carrying_operands(self.operands[0])
        wrong = (carries[:, None] & ~layouts.partial) | (without[:, None] & layouts.partial)
        return _infeasibility_flags(wrong, (len(carries), len(layouts.states)))

    def _steps_carrying_tensor_by_node(self, strategies: Sequence[Strategies], layouts: Layouts) -> list[Table] | None:
        """Return the steps at which each node carries the tensor's terms: [strategy] each.

        None if it is never partial.
        """
        if not layouts.partial.any():
            return None
        if len(self.operands) != len(self.nodes):
            raise ValueError("expected the operands through which each node reads a tensor that may be partial")
        return [
            domain.steps_carrying_operands(operands)[0]
            for domain, operands in zip(strategies, self.operands, strict=True)
        ]

    def level_traffic(self, strategies: Sequence[Strategies], layouts: Layouts) -> LevelTraffic:
        """Return the elements that cross each level, fetch by fetch.

        Only the last node's fetches count: the contributions of the earlier nodes cancel out.
        """
        carried = self._steps_carrying_tensor_by_node(strategies, layouts)
        across, last = FetchTraffic(self.nodes, strategies, layouts, carried), len(self.nodes) - 1
        parts = []
        for size in range(last + 1):
            for nodes in combinations(range(last), size):
                had = [(node, need) for node in nodes for need in range(len(self.nodes[node]))]
                for need in range(len(self.nodes[last])):
                    parts.append(((-1) ** (last - size), across.traffic_of_fetch_beyond((last, need), had)))
                    had.append((last, need))
        return LevelTraffic(across.of, tuple(parts))


class StoreCost(Struct, frozen=True):
    """The move of one output from where it is computed to where it is stored."""

    signature: Signature
    output: int

    def table(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table:
        """Return the elements moved: [strategy, layout]."""
        return elements_moved_to_store(self.signature, self.output, strategies[0], layouts)

    def infeasibility_flags(self, strategies: Sequence[Strategies], layouts: Layouts) -> Table | None:
        """Return 1 where the tensor is partial at a step that does not sum: [strategy, layout].

        None if there is no such entry.
        """
        if not layouts.partial.any():
            return None
        summing = strategies[0].steps_carrying_terms
        for name, how in self.signature.description.strategies.items():
            if how.reducer == "Sum":
                summing = summing | strategies[0].steps_choosing(name)
        return _infeasibility_flags(layouts.partial & ~summing[:, None], (len(summing), len(layouts.states)))

    def level_traffic(self, strategies: Sequence[Strategies], layouts: Layouts) -> LevelTraffic:
        """Return the elements that cross each level, hop by hop."""
        return store_level_traffic(self.signature, self.output, strategies[0], layouts)


Cost = FetchCost | StoreCost


def _subsets_of_needs(needs: tuple[Need, ...]) -> Iterator[tuple[Need, ...]]:
    return chain.from_iterable(combinations(needs, size) for size in range(1, len(needs) + 1))


def _infeasibility_flags(wrong: Table, shape: tuple[int, ...]) -> Table | None:
    return np.broadcast_to(wrong != 0, shape).astype(np.int64) if wrong.any() else None
