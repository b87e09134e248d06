"""Static memory plan: an offset for every buffer, such that buffers alive at the same time never overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes needed from task position `first` to `last`, inclusive."""

    nbytes: int
    first: int
    last: int

    def united(self, other: Storage) -> Storage:
        """Return a storage that can hold either one, for as long as either is needed."""
        nbytes, last = max(self.nbytes, other.nbytes), max(self.last, other.last)
        return Storage(nbytes, min(self.first, other.first), last)


def align(nbytes: int) -> int:
    """Round a size up to the alignment."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def plan_arena(pinned: Sequence[Storage], others: Sequence[Storage]) -> tuple[list[int], list[int], int]:
    """Return offsets of the pinned storages, offsets of the others, and the arena's size, in bytes.

    Pinned storages come first, in order, so that programs of one graph agree on the offsets of weights. The others are
    placed largest first, each in the smallest gap that holds it among those alive with it, else at the end.
    """
    at = 0
    fixed = []
    for storage in pinned:
        fixed.append(at)
        at += align(storage.nbytes)
    offsets, size = _place(others)
    return fixed, [at + offset for offset in offsets], at + size


def _place(storages: Sequence[Storage]) -> tuple[list[int], int]:
    count = len(storages)
    order = sorted(range(count), key=lambda n: (-storages[n].nbytes, storages[n].first, n))
    first, last, start, stop = (np.zeros(count, dtype=np.int64) for _ in range(4))
    size = 0
    for placed, number in enumerate(order):
        storage = storages[number]
        need = align(storage.nbytes)
        (alive,) = np.nonzero((first[:placed] <= storage.last) & (last[:placed] >= storage.first))
        at = _best_gap(start[:placed][alive], stop[:placed][alive], need)
        first[placed], last[placed], start[placed], stop[placed] = storage.first, storage.last, at, at + need
        size = max(size, at + need)
    offsets = [0] * count
    for placed, number in enumerate(order):
        offsets[number] = int(start[placed])
    return offsets, size


def _best_gap(starts: np.typing.NDArray[np.int64], stops: np.typing.NDArray[np.int64], need: int) -> int:
    """Return the best offset for `need` bytes between occupied ranges: the smallest gap, else after the last range."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    ends = np.concatenate(([0], np.maximum.accumulate(stops[order])))
    gaps = starts[order] - ends[:-1]
    fits = np.flatnonzero(gaps >= need)
    return int(ends[fits[np.argmin(gaps[fits])]]) if len(fits) else int(ends[-1])
