"""Cut an exchange into pieces: slices of local arrays that move between workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.layout import Exchange, Region, elements
from planner.layout.region import Segment, boxes, intersect, is_empty, subtract_all
from planner.program.tasks import Piece, Slices

Pieces = tuple[Piece, ...]
Copied = tuple[Region, Sequence[Region]]
"""A region that an array holds, and the parts of it that are copied."""


@dataclass(frozen=True, slots=True)
class ExchangeShare:
    """One worker's half of an exchange, in elements of its arrays.

    `receives` and `sends` list (peer, pieces) in ascending order of peers. `local` lists the pieces from the worker's
    own array, then those from each earlier fetch that it may copy from.
    """

    receives: tuple[tuple[int, Pieces], ...]
    sends: tuple[tuple[int, Pieces], ...]
    local: tuple[Pieces, ...]


class Cut:
    """An exchange in pieces; a worker's share is cut on demand. Equal exchanges of a program share one Cut."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._shares: dict[tuple[int, bool], ExchangeShare] = {}
        self.moved = exchange.moved()
        """Matrix of elements that move from worker (row) to worker (column): [worker, worker]."""

    @cached_property
    def sending(self) -> tuple[bool, ...]:
        """True for each worker that sends anything: [worker]."""
        return _flags(self.moved.sum(axis=1))

    @cached_property
    def receiving(self) -> tuple[bool, ...]:
        """True for each worker that receives or copies anything: [worker]."""
        return _flags(self.moved.sum(axis=0) + self.copied.sum(axis=0))

    @cached_property
    def taking_part(self) -> tuple[bool, ...]:
        """True for each worker that has anything to do: [worker]."""
        return tuple(map(bool.__or__, self.sending, self.receiving))

    @cached_property
    def copied(self) -> NDArray[np.int64]:
        """Elements that each worker copies from its own array and from each earlier fetch: [source, worker]."""
        counts: dict[tuple[Region, ...], list[int]] = {}  # of workers that hold and want the same
        exchange = self._exchange
        held_and_wanted = list(zip(exchange.sources, exchange.targets, *exchange.already, strict=True))
        for worker, key in enumerate(held_and_wanted):
            if key not in counts:
                copies = [self._own(worker), *_copied(exchange, worker)]
                counts[key] = [sum(map(elements, regions)) for _, regions in copies]
        return np.array([counts[key] for key in held_and_wanted], dtype=np.int64).T

    def share(self, worker: int, *, sliced: bool = True) -> ExchangeShare:
        """Return one worker's share; unless `sliced`, everything that moves between two arrays is one piece."""
        key = worker, sliced
        if key not in self._shares:
            self._shares[key] = self._sliced(worker) if sliced else self._whole(worker)
        return self._shares[key]

    def _whole(self, worker: int) -> ExchangeShare:
        sources, targets = (np.flatnonzero(moved).tolist() for moved in (self.moved[:, worker], self.moved[worker]))
        return ExchangeShare(
            tuple((source, _whole(self.moved[source, worker])) for source in sources),
            tuple((target, _whole(self.moved[worker, target])) for target in targets),
            tuple(map(_whole, self.copied[:, worker])),
        )

    def _sliced(self, worker: int) -> ExchangeShare:
        exchange = self._exchange
        target = exchange.targets[worker]
        receives = (
            (source, _pieces(exchange.sources[source], target, regions))
            for source, regions in exchange.reads(worker)
            if source != worker
        )
        sends = ((peer, self._sent(worker, peer)) for peer in np.flatnonzero(self.moved[worker]).tolist())
        local = (_pieces(held, target, regions) for held, regions in (self._own(worker), *_copied(exchange, worker)))
        return ExchangeShare(tuple(receives), tuple(sends), tuple(local))

    def _own(self, worker: int) -> Copied:
        held = self._exchange.sources[worker]
        return held, _in_common(self._exchange.wanted(worker), held)

    def _sent(self, source: int, target: int) -> Pieces:
        held = self._exchange.sources[source]
        return _pieces(held, self._exchange.targets[target], _in_common(self._exchange.wanted(target), held))


def _flags(of_workers: NDArray[np.int64]) -> tuple[bool, ...]:
    return tuple(map(bool, of_workers))


def _copied(exchange: Exchange, worker: int) -> Iterator[Copied]:
    """Yield what the worker copies from each earlier fetch: the parts that no fetch before it had."""
    target = exchange.targets[worker]
    earlier = [regions[worker] for regions in exchange.already]
    for number, region in enumerate(earlier):
        yield region, _in_common(subtract_all(target, earlier[:number]), region)


def _in_common(wanted: Iterable[Region], held: Region) -> list[Region]:
    return [common for box in wanted if not is_empty(common := intersect(box, held))]


def _pieces(source: Region, target: Region, regions: Sequence[Region]) -> Pieces:
    return tuple(_piece(box) for region in regions for box in boxes(source, target, region))


def _piece(box: tuple[Segment, ...]) -> Piece:
    here: Slices = tuple(slice(at, at + size) for at, _, size in box)
    there: Slices = tuple(slice(at, at + size) for _, at, size in box)
    return Piece(here, there, math.prod(size for _, _, size in box))


def _whole(count: np.int64) -> Pieces:
    return (Piece((), (), int(count)),) if count else ()
