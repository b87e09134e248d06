"""Pools: slots that buffers of equal size share, whose micro-batches are in flight at different times.

The chunks of an interleaved stage have most in flight one after the other: each with slots of its own would keep the
most of every chunk, and a pool keeps the most of all together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from planner.program.stage_order import KeptSlots, Spans


class Pool(NamedTuple):
    """How many slots there are, and which of them every micro-batch has, by storage."""

    slots: int
    taken: Mapping[int, tuple[int, ...]]


def pools(kept: Mapping[int, KeptSlots], nbytes: Mapping[int, int]) -> Iterator[Pool]:
    """Yield a pool of the storages of each size that need fewer slots together than apart."""
    alike = defaultdict[int, dict[int, Spans]](dict)
    for storage, (_, beyond, spans) in kept.items():
        if beyond is not None:
            alike[nbytes[storage]][storage] = spans
    for storages in alike.values():
        pool = _shared(storages)
        if pool.slots < sum(kept[storage].slots for storage in storages):
            yield pool


def _shared(storages: Mapping[int, Spans]) -> Pool:
    """Return as many slots as are in use at a time; a storage has one that it had before, where that is free."""
    used, free, slots = list[tuple[int, int]](), dict[int, None](), 0
    taken = {storage: list[int]() for storage in storages}
    for begin, end, storage in sorted((*span, storage) for storage, spans in storages.items() for span in spans):
        while used and used[0][0] < begin:
            free[heappop(used)[1]] = None
        slot = next((slot for slot in reversed(taken[storage]) if slot in free), next(reversed(free), slots))
        free.pop(slot, None)
        slots = max(slots, slot + 1)
        heappush(used, (end, slot))
        taken[storage].append(slot)
    return Pool(slots, {storage: tuple(of_storage) for storage, of_storage in taken.items()})
