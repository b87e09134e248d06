"""Local arrays while a program is laid out: their lifetimes, and which may share bytes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import ITEM_BYTES
from planner.layout import Exchange, Region, elements, local_shape
from planner.layout.region import Segment, boxes, intersect, is_empty, subtract_all
from planner.program.pipeline import Keeping, KeptSlots, Spans
from planner.program.tasks import Buffer, Piece, Slices, Storage, align, plan_arena


class Pool(NamedTuple):
    """Number of slots of a pool, and the slot of every micro-batch, by storage."""

    slots: int
    taken: Mapping[int, tuple[int, ...]]


def pools(kept: Mapping[int, KeptSlots], nbytes: Mapping[int, int]) -> Iterator[Pool]:
    """Yield a pool for the storages of each size that need fewer slots together than separately."""
    alike = defaultdict[int, dict[int, Spans]](dict)
    for storage, (_, beyond, spans) in kept.items():
        if beyond is not None:
            alike[nbytes[storage]][storage] = spans
    for storages in alike.values():
        pool = _shared(storages)
        if pool.slots < sum(kept[storage].slots for storage in storages):
            yield pool


def _shared(storages: Mapping[int, Spans]) -> Pool:
    """Return a pool with as many slots as are in use at a time.

    A storage reuses one of its earlier slots if it is free.
    """
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


Shapes = tuple[tuple[int, ...], ...]
"""Shapes of a buffer, by worker."""


@dataclass(slots=True)
class BufferSpec:
    """One buffer of every worker: its `shapes` by worker, the positions of its `uses`, ascending, and its storage.

    `storage` is the number of the buffer whose bytes it uses: its own, or that of the buffer it overwrites in place.
    The bytes are reserved for as long as the buffer is used, or longer if they are `kept` from one position to another.
    `slots` is as in Buffer; 1 stands for as many as the worker's stage has micro-batches in flight.
    """

    name: str
    kind: str
    dtype: str
    shapes: Shapes
    storage: int
    uses: list[int] = field(default_factory=list)
    kept: tuple[int, int] | None = None
    slots: int = 0

    def used(self, own: Sequence[int] | None) -> list[int]:
        """Return the positions of a worker's uses, in the common order.

        `own` maps common positions to the worker's; None if it runs all tasks.
        """
        return self.uses if own is None else [position for position in self.uses if own[position] >= 0]

    def span(self, own: Sequence[int] | None, end: int) -> tuple[int, int]:
        """Return the first and last of a worker's positions at which it is used; (0, 0) if it is never used.

        `end` is the worker's last position.
        """
        if self.kind == "persistent":
            return 0, end
        uses = self.used(own)
        return _own(own, (uses[0], uses[-1])) if uses else (0, 0)


def _own(own: Sequence[int] | None, span: tuple[int, int]) -> tuple[int, int]:
    return span if own is None else (own[span[0]], own[span[1]])


def _storage(own: Sequence[int] | None, span: tuple[int, int], kept: tuple[int, int] | None, nbytes: int) -> Storage:
    """Return the storage of `nbytes`, by a worker's positions; `span` is when it is used."""
    first, last = kept or (0, -1)
    also = range(first, last + 1) if own is None else [at for at in own[first : last + 1] if at >= 0]
    return Storage(nbytes, min((*span, *also[:1])), max((*span, *also[-1:])))


Home = tuple[int, tuple[int, ...]]
"""The storage whose slots a storage shares, and the slot of each micro-batch; empty if it has its own."""

Placed = tuple[tuple[Buffer, ...], int]
"""A worker's buffers, and the bytes of its arena."""


@dataclass(slots=True)
class BufferSpecs:
    """All buffers, with the same numbers on every worker."""

    items: list[BufferSpec] = field(default_factory=list)
    _shapes: dict[int, tuple[Sequence[Region], Shapes]] = field(default_factory=dict)  # by the identity of the regions
    _placed: dict[object, Placed] = field(default_factory=dict)

    def add(self, name: str, kind: str, dtype: str, shapes: Shapes) -> int:
        """Add a buffer and return its number."""
        self.items.append(BufferSpec(name, kind, dtype, shapes, len(self.items)))
        return len(self.items) - 1

    def add_regions(self, name: str, kind: str, dtype: str, regions: Sequence[Region]) -> int:
        """Add a buffer that holds a region on every worker; return its number."""
        if id(regions) not in self._shapes:
            self._shapes[id(regions)] = regions, tuple(map(local_shape, regions))
        return self.add(name, kind, dtype, self._shapes[id(regions)][1])

    def use(self, number: int, position: int) -> None:
        """Record that a task at this position reads or writes the buffer; positions must ascend."""
        self.items[number].uses.append(position)

    def may_overwrite(self, number: int, dying: int) -> bool:
        """Return True if a buffer first written by a task can take the bytes of one last read by that task."""
        new, old = self.items[number], self.items[dying]
        free = "persistent" not in (new.kind, old.kind) and new.uses[:1] == old.uses[-1:]
        dies = old.kept is None or old.kept[1] < old.uses[-1]
        return free and dies and new.slots == old.slots and new.shapes == old.shapes and new.dtype == old.dtype

    def overwrite(self, number: int, dying: int) -> None:
        """Let a buffer take the bytes of one that is last read by the task that first writes it."""
        self.items[number].storage = self.items[dying].storage

    def place(self, worker: int, own: tuple[int, ...] | None, end: int, keeping: Keeping | None) -> Placed:
        """Return a worker's buffers with their offsets, and the arena's size in bytes.

        Workers with equal buffer shapes that run the same tasks in the same order share the result. `own` and `end` are
        as in `BufferSpec`; `keeping` belongs to the worker's stage if there are several micro-batches.
        """
        key = own, keeping, tuple(item.shapes[worker] for item in self.items)
        if key not in self._placed:
            kept = dict[int, KeptSlots]() if keeping is None else self._slots(own, keeping)
            homes = self._share_slots(worker, kept)
            spans = [item.span(own, end) for item in self.items]
            offsets, size = self._arena(self._storages(worker, own, spans, kept, homes))
            buffers = []
            for item, span in zip(self.items, spans, strict=True):
                home, taken = homes.get(item.storage, (item.storage, ()))
                buffer = _buffer(item, worker, offsets[home], span, kept.get(home, KeptSlots(item.slots)).slots)
                buffers.append(buffer.sharing(taken) if taken else buffer)
            self._placed[key] = tuple(buffers), size
        return self._placed[key]

    def _share_slots(self, worker: int, kept: dict[int, KeptSlots]) -> dict[int, Home]:
        """Return the homes of storages that share slots; the first storage of a pool keeps the slots of all."""
        homes: dict[int, Home] = {}
        for slots, taken in pools(kept, {storage: align(_nbytes(self.items[storage], worker)) for storage in kept}):
            first = next(iter(taken))
            kept[first] = kept[first]._replace(slots=slots)
            homes |= {storage: (first, of_storage) for storage, of_storage in taken.items()}
        return homes

    def _slots(self, own: Sequence[int] | None, keeping: Keeping) -> dict[int, KeptSlots]:
        """Return the slots of the storages that each micro-batch has of its own, and how long they are kept.

        At the end they hold the data of the last micro-batch.
        """
        uses: defaultdict[int, list[int]] = defaultdict(list)
        for item in self.items:
            if item.slots == 1 and item.kind != "persistent":
                uses[item.storage] += [use for use in item.used(own) if use <= keeping.repeated[1]]
        return {storage: keeping.kept(positions) for storage, positions in uses.items() if positions}

    def _storages(
        self,
        worker: int,
        own: Sequence[int] | None,
        of_items: Sequence[tuple[int, int]],
        of_slots: Mapping[int, KeptSlots],
        homes: Mapping[int, Home],
    ) -> dict[int, Storage]:
        """Return the size of each storage of a worker, and its lifetime."""
        spans: dict[int, Storage] = {}
        for item, span in zip(self.items, of_items, strict=True):
            home, _ = homes.get(item.storage, (item.storage, ()))
            slots, kept, _ = of_slots.get(home, KeptSlots(item.slots, item.kept))
            nbytes = _nbytes(item, worker)
            storage = _storage(own, span, kept, slots * align(nbytes) if slots > 1 else nbytes)
            spans[home] = storage.united(spans.get(home, storage))
        return spans

    def _arena(self, spans: dict[int, Storage]) -> tuple[dict[int, int], int]:
        pinned = [number for number in spans if self.items[number].kind == "persistent"]
        others = [number for number in spans if self.items[number].kind != "persistent"]
        fixed, free, size = plan_arena([spans[n] for n in pinned], [spans[n] for n in others])
        return dict(zip([*pinned, *others], [*fixed, *free], strict=True)), size


def _nbytes(item: BufferSpec, worker: int) -> int:
    return math.prod(item.shapes[worker]) * (1 if item.dtype == "uint8" else ITEM_BYTES[item.dtype])


def _buffer(item: BufferSpec, worker: int, offset: int, span: tuple[int, int], slots: int) -> Buffer:
    nbytes = _nbytes(item, worker)
    return Buffer(item.name, item.shapes[worker], item.dtype, nbytes, offset, *span, item.kind, slots)


# Cut an exchange into pieces: slices of local arrays that move between workers.


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
