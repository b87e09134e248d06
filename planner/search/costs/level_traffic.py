"""Traffic across each level of a machine, that is between workers whose digits first differ at that step.

What crosses level i is held within the group that shares the digits at steps < i but not within the group that shares
the digits at steps <= i. A group holds together what one worker would hold if it were cut at those steps alone.
Therefore every level's volume is a difference of two such counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain, combinations
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.search.costs.counts import leading_step_masks, product_of_ways_by_mask
from planner.search.costs.domains import Layouts, Strategies
from planner.search.costs.needs import Need, demands_of_classes, strategy_classes_by_need
from planner.search.costs.tables import Table
from planner.search.costs.volumes import volume_within_holdings


class LevelTraffic(Struct, frozen=True, eq=False):
    """Elements that cross each level, transfer by transfer; the sum over levels is the cost's table.

    `parts` are pairs of a sign and a table [level, class of each node..., layout]. For nodes of a backward group, the
    sign is +1 for a fetch that copies from earlier ones and -1 for the same fetch alone. `of` gives, per node, the
    class of every strategy.
    """

    of: tuple[NDArray[np.intp], ...]
    parts: tuple[tuple[int, Table], ...]

    def table_by_level(self) -> Table:
        """Return the elements across each level: [level, class of each node..., layout]."""
        return sum((sign * part for sign, part in self.parts[1:]), self.parts[0][0] * self.parts[0][1])

    def table_over_strategies(self, table: Table) -> Table:
        """Return a table over classes as a table over strategies; its last axes are [class of each node..., layout]."""
        for axis, of in enumerate(reversed(self.of), start=2):
            table = table.take(of if table.shape[-axis] > 1 else np.zeros_like(of), axis=-axis)
        return table


class FetchTraffic:
    """Elements of fetches of one tensor that cross each level: [level, class of each node..., layout].

    A need is (node, number among the node's needs). `of` gives, per node, the class of every strategy. `carried` gives
    the steps at which each node carries the tensor's terms, if the tensor may be partial.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[Need, ...]],
        strategies: Sequence[Strategies],
        layouts: Layouts,
        carried: Sequence[Table] | None,
    ) -> None:
        more = [()] * len(nodes) if carried is None else [(steps,) for steps in carried]
        classes = [strategy_classes_by_need(*arguments) for arguments in zip(nodes, strategies, more, strict=True)]
        self.of = tuple(axis.of for axis in classes)
        self._terms_read: Table | int = 1
        self._together: Table | int = 1
        if carried is not None:
            kept = [axis.masks[:, -1] for axis in classes]
            after = ~leading_step_masks(layouts.ways).reshape(-1, *(1,) * (len(nodes) + 1))
            self._terms_read = product_of_ways_by_mask(layouts.ways)[layouts.partial & ~kept[-1][:, None] & after]
            self._together = shared_fetch_flags(kept, layouts).astype(np.int64)
        self._terms = [demands_of_classes(needs, axis.masks) for needs, axis in zip(nodes, classes, strict=True)]
        self._layouts = layouts
        groups = layouts.sharded[:, None, :] & leading_step_masks(layouts.ways)[:, None]
        columns = groups.reshape(len(layouts.shape), groups.shape[1] * groups.shape[2])
        self._masks, at = np.unique(columns, axis=1, return_inverse=True)
        self._at = at.reshape(groups.shape[1:])
        self._fetches: dict[frozenset[tuple[int, int]], Table] = {}

    def traffic_of_fetch_beyond(self, need: tuple[int, int], had: Sequence[tuple[int, int]]) -> Table:
        """Return the fetch of what is in a need and in none of the needs in `had`."""
        subsets = chain.from_iterable(combinations(had, size) for size in range(len(had) + 1))
        parts = [(-1) ** len(others) * self._traffic_of_common_fetch(frozenset((need, *others))) for others in subsets]
        return np.asarray(reduce(np.add, parts) * self._together)

    def _traffic_of_common_fetch(self, needs: frozenset[tuple[int, int]]) -> Table:
        """Return the fetch of what is in all of these needs; a node without any of them has an axis of length 1."""
        if needs not in self._fetches:
            self._fetches[needs] = self._fetch_of_common_needs(needs)
        return self._fetches[needs]

    def _fetch_of_common_needs(self, needs: frozenset[tuple[int, int]]) -> Table:
        steps, states = len(self._layouts.ways), len(self._layouts.states)
        if not self._layouts.shape:
            volume = np.full((steps + 1, *(1 for _ in self.of), states), prod(self._layouts.ways), dtype=np.int64)
            return self._differences_of_levels(volume)
        axes = []
        for node, terms in enumerate(self._terms):
            kept = [number for at, number in sorted(needs) if at == node]
            axes.append([[tuple(term[n] for n in kept) for term in dim[: None if kept else 1]] for dim in terms])
        volume = volume_within_holdings(axes, self._masks, self._layouts.ways).astype(np.int64)
        return self._differences_of_levels(np.moveaxis(volume[..., self._at], -2, 0))

    def _differences_of_levels(self, volume: Table) -> Table:
        had = volume * self._terms_read
        return np.asarray(had[:-1] - had[1:])


def shared_fetch_flags(carried: Sequence[Table], layouts: Layouts) -> NDArray[np.bool_]:
    """Return True where all nodes carry the same terms and share a fetch.

    The shape is [strategy or class of each node..., layout].
    """
    last = carried[-1][:, None]
    together = np.ones((1,) * (len(carried) + 1), dtype=bool)
    for number, steps in enumerate(carried[:-1], start=1):
        differing = (steps[:, *(None,) * (len(carried) - number), None] ^ last) & layouts.partial
        together = together & (differing == 0)
    return together
