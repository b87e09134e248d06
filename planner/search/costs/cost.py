"""Exact costs in elements moved, as tables over candidate strategies and layouts (docs/explanation/transfers.md).

Reading: the sources that share a worker's digits at the replicated steps tile the tensor, so a worker fetches what it
needs and does not own: |need| - |need n own|. Writing: an owner pulls its tile from every partial result, or partial
results are first reduced to shares and the shares fetched. All of these volumes are products over dimensions of the
counts in `domains.py`. Where no count depends on the worker they equal the design's closed forms.

Partial tensors: a reader that does not carry the terms on fetches all of them, so |need| counts once per term; a result
that stays partial is not reduced. The cost tables do not encode feasibility; `infeasibility_flags` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations, product
from math import prod

import numpy as np
from msgspec import Struct

from planner.graph.ir import Graph
from planner.graph.micro_batches import phases_of_nodes, runs_of
from planner.layout import EVERYWHERE, SMALL_SUM, Signature, Ways
from planner.plans.traffic import backward_groups
from planner.search.costs.domains import (
    Counts,
    Layouts,
    Strategies,
    counts_held,
    counts_of_share_held,
    first_replica_flags,
    leading_step_masks,
    masks_of_dimensions_to_share,
    product_of_ways_by_mask,
)
from planner.search.costs.tables import Table
from planner.search.costs.volumes import (
    KEPT_TABLES,
    Classes,
    Demand,
    FetchTraffic,
    LevelTraffic,
    Need,
    Volumes,
    classes_of_equal_columns,
    counts_by_class_of_each_axis,
    counts_with_equal_workers_merged,
    demands_of_classes,
    needs_of_operands,
    output_reach,
    row_blocks,
    shared_fetch_flags,
    sum_over_workers,
    volume_not_owned,
)

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


# The terms of a graph's cost: every fetch, every saving of nodes that share a fetch, and every store.


CostTerm = tuple[tuple[str, ...], str, Cost, int]
"""(nodes, tensor, cost, executions per iteration) of a fetch, a shared fetch or a store."""


def cost_terms(
    graph: Graph,
    signatures: Mapping[str, Signature],
    as_terms: Mapping[str, frozenset[int]],
    times: Mapping[str, int],
    *,
    partial: bool,
) -> Iterator[CostTerm]:
    """Yield every fetch, shared fetch and store.

    `times` counts the nodes that a node stands for, if not 1. Nodes may read terms through the operands `as_terms`, all
    of them together. With `partial`, any node may read terms through any operands.
    """
    phases, adding_up = phases_of_nodes(graph), frozenset(graph.accumulated)
    group_of = backward_groups(graph)
    groups: dict[tuple[str, int, str, str], dict[str, Reader]] = {}
    for node in graph.nodes:
        signature, alike = signatures[node.name], times.get(node.name, 1)
        runs = alike * runs_of(phases[node.name], graph)
        together = as_terms.get(node.name, frozenset())
        for tensor in dict.fromkeys(node.inputs):
            operands = tuple(operand for operand, name in enumerate(node.inputs) if name == tensor)
            terms = tuple(sorted(together)) if together.issuperset(operands) else operands if partial else None
            reader = needs_of_operands(signature, operands), terms
            yield (node.name,), tensor, _fetch_cost_of_readers(graph.tensors[tensor].shape, [reader]), runs
            if node.forward is not None:
                group = node.forward, group_of[node.name, tensor], tensor, phases[node.name]
                groups.setdefault(group, {})[node.name] = reader
        for output, tensor in enumerate(node.outputs):
            yield (node.name,), tensor, StoreCost(signature, output), alike if tensor in adding_up else runs
    for (*_, tensor, phase), readers in groups.items():
        for size in range(2, len(readers) + 1):
            for nodes in combinations(readers, size):
                yield (
                    nodes,
                    tensor,
                    _fetch_cost_of_readers(graph.tensors[tensor].shape, [readers[node] for node in nodes]),
                    times.get(nodes[0], 1) * runs_of(phase, graph),
                )


Reader = tuple[tuple[Need, ...], tuple[int, ...] | None]
"""A node's needs of a tensor, and the operands through which it reads the tensor if those matter."""


def _fetch_cost_of_readers(shape: tuple[int, ...], readers: Sequence[Reader]) -> FetchCost:
    operands = tuple(positions for _, positions in readers if positions is not None)
    return FetchCost(shape, tuple(needs for needs, _ in readers), operands)
