"""An exchange cut into pieces: which slices of whose array go where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.layout import Exchange, Region, elements
from planner.layout.region import Segment, boxes, intersect, subtract_all
from planner.program.tasks import Piece, Slices

Pieces = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's half of an exchange, in elements of its arrays.

    `receives` and `sends` list (peer, pieces) in ascending order of peers; `local` are the pieces that come from the
    worker's own array, then those from each earlier fetch that it may copy from.
    """

    receives: tuple[tuple[int, Pieces], ...]
    sends: tuple[tuple[int, Pieces], ...]
    local: tuple[Pieces, ...]

    @property
    def is_empty(self) -> bool:
        """True if the worker has nothing to do in the exchange."""
        return not (self.receives or self.sends or any(self.local))


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """An exchange in pieces: each worker's share, and the k x k elements in them from worker (row) to worker (column).

    `taking_part` says of every worker whether it has anything to do. Equal exchanges of a program share one.
    """

    shares: tuple[Share, ...]
    moved: NDArray[np.int64]
    taking_part: tuple[bool, ...]

    @property
    def sending(self) -> tuple[bool, ...]:
        """Say of every worker whether it sends anything."""
        return tuple(bool(share.sends) for share in self.shares)

    @property
    def receiving(self) -> tuple[bool, ...]:
        """Say of every worker whether it receives or copies anything."""
        return tuple(bool(share.receives) or any(map(bool, share.local)) for share in self.shares)


def cut(exchange: Exchange) -> Cut:
    """Cut an exchange into every worker's share of it."""
    workers = range(len(exchange.targets))
    receives: list[list[tuple[int, Pieces]]] = [[] for _ in workers]
    sends: list[list[tuple[int, Pieces]]] = [[] for _ in workers]
    own: list[Pieces] = [() for _ in workers]
    moved = np.zeros((len(workers),) * 2, dtype=np.int64)
    for worker in workers:
        target = exchange.targets[worker]
        for source, regions in exchange.reads(worker):
            pieces = _pieces(exchange.sources[source], target, regions)
            if source == worker:
                own[worker] = pieces
            else:
                receives[worker].append((source, pieces))
                sends[source].append((worker, pieces))
                moved[source, worker] = total_elements(pieces)
    shares = tuple(
        Share(tuple(receives[worker]), tuple(sends[worker]), (own[worker], *_copied(exchange, worker)))
        for worker in workers
    )
    return Cut(shares, moved, tuple(not share.is_empty for share in shares))


def total_elements(pieces: Pieces) -> int:
    """Return how many elements the pieces hold together."""
    return sum(piece.elements for piece in pieces)


def _copied(exchange: Exchange, worker: int) -> tuple[Pieces, ...]:
    """Return what the worker copies from each earlier fetch: of each, what none before it had."""
    target = exchange.targets[worker]
    earlier = [regions[worker] for regions in exchange.already]
    copied = []
    for number, region in enumerate(earlier):
        common = (intersect(box, region) for box in subtract_all(target, earlier[:number]))
        copied.append(_pieces(region, target, [box for box in common if elements(box)]))
    return tuple(copied)


def _pieces(source: Region, target: Region, regions: Sequence[Region]) -> Pieces:
    return tuple(_piece(box) for region in regions for box in boxes(source, target, region))


def _piece(box: tuple[Segment, ...]) -> Piece:
    here: Slices = tuple(slice(at, at + size) for at, _, size in box)
    there: Slices = tuple(slice(at, at + size) for _, at, size in box)
    return Piece(here, there, math.prod(size for _, _, size in box))
