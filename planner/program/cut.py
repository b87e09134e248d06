"""An exchange cut into pieces: which slices of whose array go where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.layout import Exchange, Region, elements
from planner.layout.region import Segment, boxes, intersect, is_empty, subtract_all
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


class Cut:
    """An exchange in pieces: a worker's share is cut when it is asked for. Equal exchanges of a program share one."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._shares: dict[int, Share] = {}
        self.moved = exchange.moved()
        """The k x k matrix of elements that go from worker (row) to worker (column)."""

    @cached_property
    def sending(self) -> tuple[bool, ...]:
        """Say of every worker whether it sends anything."""
        return tuple(self.moved.any(axis=1).tolist())

    @cached_property
    def receiving(self) -> tuple[bool, ...]:
        """Say of every worker whether it receives or copies anything."""
        return tuple((self.moved.any(axis=0) | (self.copied > 0)).tolist())

    @cached_property
    def taking_part(self) -> tuple[bool, ...]:
        """Say of every worker whether it has anything to do."""
        return tuple(map(bool.__or__, self.sending, self.receiving))

    @cached_property
    def copied(self) -> NDArray[np.int64]:
        """How many elements each worker copies from its own arrays."""
        counts: dict[tuple[Region, ...], int] = {}  # of workers that hold and want the same
        exchange = self._exchange
        held_and_wanted = list(zip(exchange.sources, exchange.targets, *exchange.already, strict=True))
        for worker, key in enumerate(held_and_wanted):
            if key not in counts:
                wanted = exchange.wanted(worker)
                own = sum(elements(intersect(box, key[0])) for box in wanted)
                counts[key] = elements(key[1]) - sum(map(elements, wanted)) + own
        return np.array([counts[key] for key in held_and_wanted], dtype=np.int64)

    def share(self, worker: int) -> Share:
        """Cut one worker's share."""
        if worker not in self._shares:
            exchange, receives = self._exchange, list[tuple[int, Pieces]]()
            own: Pieces = ()
            for source, regions in exchange.reads(worker):
                pieces = _pieces(exchange.sources[source], exchange.targets[worker], regions)
                if source == worker:
                    own = pieces
                else:
                    receives.append((source, pieces))
            sends = ((peer, self._sent(worker, peer)) for peer in np.flatnonzero(self.moved[worker]).tolist())
            local = own, *_copied(exchange, worker)
            self._shares[worker] = Share(tuple(receives), tuple(sends), local)
        return self._shares[worker]

    def _sent(self, source: int, target: int) -> Pieces:
        held = self._exchange.sources[source]
        found = (intersect(box, held) for box in self._exchange.wanted(target))
        regions = [region for region in found if not is_empty(region)]
        return _pieces(held, self._exchange.targets[target], regions)


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
