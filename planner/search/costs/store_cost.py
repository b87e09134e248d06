"""Storing an output: from where it is computed to where it lies, in one hop or two (docs/explanation/transfers.md)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod

import numpy as np

from planner.layout import EVERYWHERE, Signature
from planner.search.costs.counts import counts_held, first_replica_flags, leading_step_masks, product_of_ways_by_mask
from planner.search.costs.domains import Layouts, Strategies, masks_of_dimension_to_share
from planner.search.costs.level_traffic import LevelTraffic
from planner.search.costs.needs import Classes, Need, classes_of_equal_columns, demands_of_classes, output_reach
from planner.search.costs.tables import Table
from planner.search.costs.volumes import (
    KEPT_TABLES,
    counts_by_class_of_each_axis,
    counts_with_equal_workers_merged,
    row_blocks,
    sum_over_workers,
)


def elements_moved_to_store(signature: Signature, output: int, strategies: Strategies, layouts: Layouts) -> Table:
    """Return elements moved to store an output; one hop where nothing is replicated or reduced, else two."""
    reach, classes = _reach_and_strategy_classes(signature, output, strategies)
    return np.asarray(_elements_moved_by_class(reach, tuple(map(tuple, classes.masks.tolist())), layouts)[classes.of])


@lru_cache(maxsize=KEPT_TABLES)
def _elements_moved_by_class(reach: Need, rows: tuple[tuple[int, ...], ...], layouts: Layouts) -> Table:
    """Return elements moved, [class, layout], of classes of strategies with these masks."""
    classes, moved = np.array(rows, dtype=np.int64), np.empty((len(rows), len(layouts.states)), dtype=np.int64)
    for block in row_blocks(len(rows), len(layouts.states) * prod(layouts.ways) * 2):
        masks = classes[block]
        copies = product_of_ways_by_mask(layouts.ways)[masks[:, -2, None] & ~layouts.partial]
        own, share, kept = _share_volumes(reach, masks, layouts)
        moved[block] = (copies - 1) * np.where(layouts.replicated == 0, own, share) + own - kept
    return moved


def store_level_traffic(signature: Signature, output: int, strategies: Strategies, layouts: Layouts) -> LevelTraffic:
    """Return what crosses each level while partial results are reduced to shares, and in the other hop.

    The sources of a tile that share a worker's digits at the steps before i number as many as the reducing steps
    from i on have ways. Where shares are reduced first, their number no longer matters to what is fetched.
    """
    reach, classes = _reach_and_strategy_classes(signature, output, strategies)
    ways, steps = layouts.ways, len(layouts.ways)
    shape = (len(classes.masks), len(layouts.states))
    kept, share = np.empty((steps + 1, *shape), dtype=np.int64), np.empty(shape, dtype=np.int64)
    for block in row_blocks(shape[0], shape[1] * prod(ways) * 2):
        for i, part in enumerate(leading_step_masks(ways).tolist()):
            _, share[block], kept[i, block] = _share_volumes(reach, classes.masks[block] & part, layouts)
    copies = product_of_ways_by_mask(ways)[
        classes.masks[:, -2, None] & ~leading_step_masks(ways)[:, None, None] & ~layouts.partial
    ]
    one_hop = layouts.replicated == 0
    reduced = np.where(one_hop, 0, (copies[:-1] - copies[1:]) * share)
    had = np.where(one_hop, copies, 1) * kept
    return LevelTraffic((classes.of,), ((1, reduced), (1, had[:-1] - had[1:])))


def _reach_and_strategy_classes(signature: Signature, output: int, strategies: Strategies) -> tuple[Need, Classes]:
    """Return where the output lands, and strategies' masks: per variable there, of reducing steps, of `*` steps."""
    reach, reducing = output_reach(signature, output), strategies.steps_carrying_terms
    for name in signature.description.reduction_variables:
        reducing = reducing | strategies.steps_choosing(name)
    columns = [strategies.steps_choosing(name) for dimension in reach for name in dimension.variables]
    return reach, classes_of_equal_columns(
        [*columns, reducing, strategies.steps_choosing(EVERYWHERE)], len(strategies.states)
    )


def _share_volumes(reach: Need, masks: Table, layouts: Layouts) -> tuple[Table, Table, Table]:
    """Return what all workers together own [1, layout], have as shares, and own of their shares [class, layout]."""
    ways = layouts.ways
    own, share, kept = _share_volumes_by_worker(reach, masks, layouts)
    alone = masks[:, -2, None] & layouts.replicated & _dimensions_to_share(reach, masks, layouts)[-1, :, None]
    if alone.any():
        alive = first_replica_flags(ways)[alone]
        share, kept = share * alive, kept * alive
    own_total, share_total, kept_total = (sum_over_workers(volume, ways) for volume in (own, share, kept))
    return own_total, share_total, kept_total


def _share_volumes_by_worker(reach: Need, masks: Table, layouts: Layouts) -> tuple[Table, Table, Table]:
    """Return |own| as [1, layout, worker], and |share| and |own n share| as [class, layout, worker].

    At a reducing step a share is cut along the stored dimension or, where stored replicated, along the first to
    share; at a `*` step along the stored dimension.
    """
    ways, first = layouts.ways, _dimensions_to_share(reach, masks, layouts)
    reducing, same = masks[:, -2, None], masks[:, -1, None]
    own: Table = np.ones((1, 1, 1), dtype=np.int64)
    share, kept = own, own
    for dim, axis in enumerate(demands_of_classes((reach,), masks[:, :-2])):
        (numbers,), counts = counts_by_class_of_each_axis((tuple(axis),), ways)
        sharded = layouts.sharded[dim]
        cut = ((reducing | same) & sharded) | (reducing & layouts.replicated & first[dim, :, None])
        own = own * counts_with_equal_workers_merged(counts_held(layouts.shape[dim], ways)[sharded])
        share = share * counts[numbers[:, None], cut]
        kept = kept * counts[numbers[:, None], cut | sharded]
    return own, share, kept


def _dimensions_to_share(reach: Need, masks: Table, layouts: Layouts) -> Table:
    """Return [dimension, class]: the steps at which a class's result is shared out along each, and along none."""
    columns = iter(masks[:, :-2].T)
    split = [[next(columns) for _ in dimension.variables] for dimension in reach]
    rows: Iterable[tuple[int, ...]] = [(0,) * len(reach)]
    if layouts.ways.axes and reach:
        nowhere = np.zeros_like(masks[:, -1])
        plain = (at[0] if of.plain is not None else nowhere for at, of in zip(split, reach, strict=True))
        rows = zip(*(column.tolist() for column in plain), strict=True)
    shared = [masks_of_dimension_to_share(layouts.shape, layouts.ways, row) for row in rows]
    return np.array(shared, dtype=np.int64).T
