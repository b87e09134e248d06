"""Equivalent workers of a plan: workers whose tasks have equal sizes, with messages of equal sizes.

Workers are compared by regions and counts, before any task is written, so only one worker per class needs its tasks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.grouping import numbered_values
from planner.layout import Collective, elements, needed, production
from planner.layout.geometry import split_steps
from planner.layout.region import runs_of_workers
from planner.plans.traffic import NodeTraffic
from planner.program.buffer_plan import BufferPlan

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """Classes of workers [worker] and of pairs of workers [from, to]: equal numbers mean equivalent.

    Two pairs are equivalent if the same transfers move messages of the same sizes between them; pairs without messages
    have number 0. `apart` is True for pairs with messages in a transfer that is not a collective. `collectives` lists
    the collective transfers, with the bytes of an element.
    """

    workers: Numbers
    pairs: Numbers
    apart: NDArray[np.bool_]
    collectives: tuple[tuple[Collective, int], ...]


def likeness(plan: BufferPlan) -> Likeness:
    """Return the classes of a plan's workers."""
    workers = np.zeros(plan.plan.workers, dtype=np.int64)
    for told in dict.fromkeys(map(tuple, _told_apart(plan))):
        workers = numbered(workers, by_value(told))
    pairs, apart = np.zeros((len(workers),) * 2, dtype=np.int64), np.zeros((len(workers),) * 2, dtype=np.bool_)
    for cut in dict.fromkeys(ends.cut for ends in plan.ends.values()):
        moving = np.nonzero(cut.moved)
        pairs[moving] = pairs.max() + 1 + numbered(pairs[moving], cut.moved[moving])
    for cut in dict.fromkeys(ends.cut for ends in plan.ends.values() if ends.collective is None):
        apart |= cut.moved > 0
    collectives = dict.fromkeys(
        (ends.collective, plan.item_bytes(transfer.tensor)) for transfer, ends in plan.ends.items() if ends.collective
    )
    return Likeness(workers, pairs, apart, tuple(collectives))


def numbered(*columns: Numbers) -> Numbers:
    """Number rows of columns side by side from 0: equal rows have equal numbers."""
    numbers = columns[0]
    for column in columns[1:]:
        _, values = np.unique(column, return_inverse=True)
        _, numbers = np.unique(numbers * (1 + values.max(initial=0)) + values, return_inverse=True)
    return numbers


def by_value(values: Sequence[Hashable]) -> Numbers:
    """Number values in the order in which they first occur."""
    return np.array(numbered_values(values)[0], dtype=np.int64)


def _told_apart(plan: BufferPlan) -> Iterable[Sequence[Hashable]]:
    """Yield everything that may differ between workers, as one value per worker."""
    yield plan.stage_of
    for event in plan.events:
        yield plan.taking_part(event)
    for item in plan.specs.items:
        yield item.shapes
    for cut in dict.fromkeys(ends.cut for ends in plan.ends.values()):
        yield from cut.copied.tolist()
    works = {(work.signature, work.strategy): work for unit in plan.units for work in unit}
    for work in works.values():
        yield from _of_node(plan, work)


def _of_node(plan: BufferPlan, work: NodeTraffic) -> Iterable[Sequence[Hashable]]:
    """Yield each worker's iteration counts, and its elements of each operand and output."""
    signature, strategy, ways = work.signature, work.strategy, plan.plan.ways
    for name, steps in split_steps(strategy).items():
        runs = runs_of_workers(signature.extents[name], steps, ways)
        yield [tuple(stop - start for start, stop in of_worker) for of_worker in runs]
    for operand in range(len(signature.shapes)):
        yield [*map(elements, needed(signature, operand, strategy, ways))]
    for output in range(len(signature.outputs)):
        yield [*map(elements, production(signature, output, strategy, ways).regions)]
