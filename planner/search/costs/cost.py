"""Exact costs in elements moved, as tables over candidate strategies and layouts (docs/explanation/transfers.md).

Reading: the sources that share a worker's digits at the replicated steps tile the tensor, so a worker fetches what it
needs and does not own: |need| - |need n own|. Writing: an owner pulls its tile from every partial result, or partial
results are first reduced to shares and the shares fetched. All of these volumes are products over dimensions of the
counts in `counts.py`. Where no count depends on the worker they equal the design's closed forms.

Partial tensors: a reader that does not carry the terms on fetches all of them, so |need| counts once per term; a result
that stays partial is not reduced. The cost tables do not encode feasibility; `infeasibility_flags` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import chain, combinations, product
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.layout import EVERYWHERE, SMALL_SUM, Signature, Ways
from planner.search.costs.counts import (
    Counts,
    counts_held,
    counts_of_share_held,
    first_replica_flags,
    leading_step_masks,
    product_of_ways_by_mask,
)
from planner.search.costs.domains import Layouts, Strategies, masks_of_dimensions_to_share
from planner.search.costs.tables import Table
from planner.search.costs.volumes import (
    KEPT_TABLES,
    Classes,
    Demand,
    Need,
    Volumes,
    classes_of_equal_columns,
    counts_by_class_of_each_axis,
    counts_with_equal_workers_merged,
    demands_of_classes,
    output_reach,
    row_blocks,
    strategy_classes_by_need,
    sum_over_workers,
    volume_not_owned,
    volume_within_holdings,
)

# Traffic across each level of a machine, that is between workers whose digits first differ at that step.
#
# What crosses level i is held within the group that shares the digits at steps < i but not within the group that
# shares the digits at steps <= i. A group holds together what one worker would hold if it were cut at those steps
# alone. Therefore every level's volume is a difference of two such counts.


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


# Storing an output: from where it is computed to where it is stored, in one or two hops.
#
# See docs/explanation/transfers.md.


def elements_moved_to_store(signature: Signature, output: int, strategies: Strategies, layouts: Layouts) -> Table:
    """Return the elements moved to store an output: [strategy, layout].

    One hop if nothing is replicated or reduced, else two. A small sum of two workers is counted as two hops; its single
    hop moves as much.
    """
    reach, classes = _reach_and_strategy_classes(signature, output, strategies)
    return np.asarray(_elements_moved_by_class(reach, tuple(map(tuple, classes.masks.tolist())), layouts)[classes.of])


@lru_cache(maxsize=KEPT_TABLES)
def _elements_moved_by_class(reach: Need, rows: tuple[tuple[int, ...], ...], layouts: Layouts) -> Table:
    """Return the elements moved for classes of strategies with these masks: [class, layout]."""
    classes, moved = np.array(rows, dtype=np.int64), np.empty((len(rows), len(layouts.states)), dtype=np.int64)
    for block in row_blocks(len(rows), len(layouts.states) * prod(layouts.ways) * 2):
        masks = classes[block]
        copies = product_of_ways_by_mask(layouts.ways)[masks[:, -2, None] & ~layouts.partial]
        own, share, kept = _share_volumes(reach, masks, *_cuts_of_shares(reach, masks, layouts), layouts)
        moved[block] = (copies - 1) * np.where(layouts.replicated == 0, own, share) + own - kept
    return moved


def store_level_traffic(signature: Signature, output: int, strategies: Strategies, layouts: Layouts) -> LevelTraffic:
    """Return the elements that cross each level while partial results are reduced to shares, and in the other hop.

    The number of sources of a tile that share a worker's digits at the steps before i is the product of the ways of the
    reducing steps from i on. If shares are reduced first, that number does not matter to the fetches. All of a small
    sum of two workers crosses in the other hop.
    """
    reach, classes = _reach_and_strategy_classes(signature, output, strategies)
    ways, steps = layouts.ways, len(layouts.ways)
    shape = (len(classes.masks), len(layouts.states))
    kept, share = np.empty((steps + 1, *shape), dtype=np.int64), np.empty(shape, dtype=np.int64)
    of_pair = np.empty(shape, dtype=np.bool_)
    for block in row_blocks(shape[0], shape[1] * prod(ways) * 2):
        masks = classes.masks[block]
        cuts, alone = _cuts_of_shares(reach, masks, layouts)
        for i, part in enumerate(leading_step_masks(ways).tolist()):
            volumes = _share_volumes(reach, masks & part, cuts & part, alone & part, layouts)
            _, share[block], kept[i, block] = volumes
        of_pair[block] = _are_small_sums_of_pairs(reach, masks, layouts)
    copies = product_of_ways_by_mask(ways)[
        classes.masks[:, -2, None] & ~leading_step_masks(ways)[:, None, None] & ~layouts.partial
    ]
    one_hop = layouts.replicated == 0
    reduced = np.where(one_hop, 0, (copies[:-1] - copies[1:]) * share)
    had = np.where(one_hop, copies, 1) * kept
    stored = had[:-1] - had[1:] + np.where(of_pair, reduced, 0)
    return LevelTraffic((classes.of,), ((1, np.where(of_pair, 0, reduced)), (1, stored)))


def _are_small_sums_of_pairs(reach: Need, masks: Table, layouts: Layouts) -> Table:
    """Return True where two workers have the terms of what both store and it is small: [class, layout]."""
    reducing = masks[:, -2, None] & ~layouts.partial
    if layouts.ways.shares or prod(layouts.shape) > SMALL_SUM:
        return np.zeros((len(masks), len(layouts.states)), dtype=np.bool_)
    nowhere = np.zeros((len(layouts.shape), len(masks), len(layouts.states)), dtype=np.int64)
    own, computed, kept = _share_volumes(reach, masks, nowhere, np.zeros_like(reducing), layouts)
    alike = (own == computed) & (own == kept)
    return np.asarray(alike & (product_of_ways_by_mask(layouts.ways)[reducing] == 2))


def _reach_and_strategy_classes(signature: Signature, output: int, strategies: Strategies) -> tuple[Need, Classes]:
    """Return where the output lands, and the classes of strategies.

    Classes are told apart by the masks of the output's variables, of reducing steps and of `*` steps.
    """
    reach, reducing = output_reach(signature, output), strategies.steps_carrying_terms
    for name in signature.description.reduction_variables:
        reducing = reducing | strategies.steps_choosing(name)
    columns = [strategies.steps_choosing(name) for dimension in reach for name in dimension.variables]
    return reach, classes_of_equal_columns(
        [*columns, reducing, strategies.steps_choosing(EVERYWHERE)], len(strategies.states)
    )


def _cuts_of_shares(reach: Need, masks: Table, layouts: Layouts) -> tuple[Table, Table]:
    """Return the steps at which shares are cut along each dimension [dimension, class, layout], and along none.

    At a reducing step shares are cut along the stored dimension. If that is replicated, or another axis is in the way,
    they are cut along the first dimension to share. At a `*` step they are cut along the stored dimension. In one hop
    nothing is cut.
    """
    first, free = _dimensions_to_share(reach, masks, layouts)
    reducing, same = masks[:, -2, None] & ~layouts.partial, masks[:, -1, None]
    in_two_hops = (reducing != 0) & (layouts.replicated != 0)
    stored = layouts.sharded[:, None] & free[..., None]
    unfit = layouts.replicated | np.bitwise_or.reduce(layouts.sharded[:, None] & ~stored, axis=0)
    shared = np.where(in_two_hops, reducing & unfit, 0)
    cuts = np.where(in_two_hops, ((reducing | same) & stored) | (shared & first[:-1, :, None]), 0)
    return cuts, shared & first[-1, :, None]


def _share_volumes(
    reach: Need, masks: Table, cuts: Table, alone: Table, layouts: Layouts
) -> tuple[Table, Table, Table]:
    """Return three volumes of all workers: owned [1, layout], in shares, and owned of their shares [class, layout].

    At the steps `alone`, where shares are cut along no dimension, the first worker has all of them.
    """
    own, share, kept = _share_volumes_by_worker(reach, masks, cuts, layouts)
    if alone.any():
        alive = first_replica_flags(layouts.ways)[alone]
        share, kept = share * alive, kept * alive
    own_total, share_total, kept_total = (sum_over_workers(volume, layouts.ways) for volume in (own, share, kept))
    return own_total, share_total, kept_total


def _share_volumes_by_worker(reach: Need, masks: Table, cuts: Table, layouts: Layouts) -> tuple[Table, Table, Table]:
    """Return |own| as [1, layout, worker], and |share| and |own n share| as [class, layout, worker].

    `cuts` are the steps at which a share is cut along each dimension: [dimension, class, layout].
    """
    ways = layouts.ways
    own: Table = np.ones((1, 1, 1), dtype=np.int64)
    share, kept = own, own
    for axis, cut, extent, sharded in zip(
        demands_of_classes((reach,), masks[:, :-2]), cuts, layouts.shape, layouts.sharded, strict=True
    ):
        shares, in_shares = _share_counts(axis, cut, sharded, ways)
        own = own * counts_with_equal_workers_merged(counts_held(extent, ways)[sharded])
        share, kept = share * shares, kept * in_shares
    return own, share, kept


def _share_counts(axis: Sequence[Demand], cut: Table, sharded: Table, ways: Ways) -> tuple[Counts, Counts]:
    """Return the indices of one dimension in workers' shares, and how many of them they hold: [class, layout, worker].

    With nested splits, a worker holds the part of its share that is split at the steps of both.
    """
    if ways.is_nested:
        (numbers,), counts = counts_by_class_of_each_axis((tuple(axis),), ways)
        return counts[numbers[:, None], cut], counts[numbers[:, None], cut | sharded]
    distinct: dict[tuple[Demand, int], int] = {}
    pairs = ((demand, masks) for demand, masks in zip(axis, cut.tolist(), strict=True))
    numbers = np.array([[distinct.setdefault((demand, mask), len(distinct)) for mask in row] for demand, row in pairs])
    counts = np.array([counts_of_share_held(*demand, mask, ways) for (demand,), mask in distinct])
    return counts[numbers, 0], counts[numbers, sharded]


def _dimensions_to_share(reach: Need, masks: Table, layouts: Layouts) -> tuple[Table, Table]:
    """Return the steps at which a class's result is cut into shares along each dimension, and those at which it may be.

    Both are [dimension, class]; the first has a last row for steps with no dimension to share.
    """
    columns = iter(masks[:, :-2].T)
    split = [[next(columns) for _ in dimension.variables] for dimension in reach]
    rows: Iterable[tuple[int, ...]] = [(0,) * len(reach)]
    if layouts.ways.axes and reach:
        nowhere = np.zeros_like(masks[:, -1])
        plain = (at[0] if of.plain is not None else nowhere for at, of in zip(split, reach, strict=True))
        rows = zip(*(column.tolist() for column in plain), strict=True)
    first, free = zip(*(masks_of_dimensions_to_share(layouts.shape, layouts.ways, row) for row in rows), strict=True)
    return np.array(first, dtype=np.int64).T, np.array(free, dtype=np.int64).T


# Exact costs in elements moved, as tables over candidate strategies and layouts (docs/explanation/transfers.md).


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
