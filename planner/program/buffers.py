"""Local arrays while a program is being laid out: who needs them from when to when, and which may share bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.graph.ir import ITEM_BYTES
from planner.layout import Region, local_shape
from planner.program.arena import Storage, plan_arena
from planner.program.tasks import Buffer


@dataclass(slots=True)
class BufferSpec:
    """One buffer of every worker: `shapes` by worker; positions of its first and last use; where its bytes are.

    `storage` is the number of the buffer whose bytes it uses: its own, or that of the one it overwrites in place.
    """

    name: str
    kind: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    storage: int
    first: int = -1
    last: int = -1


Placed = tuple[tuple[Buffer, ...], int]
"""A worker's buffers, and the bytes of its arena."""


@dataclass(slots=True)
class BufferSpecs:
    """All buffers, numbered alike on every worker."""

    items: list[BufferSpec] = field(default_factory=list)
    _placed: dict[object, Placed] = field(default_factory=dict)

    def add(self, name: str, kind: str, dtype: str, shapes: Sequence[tuple[int, ...]]) -> int:
        """Add a buffer and return its number."""
        self.items.append(BufferSpec(name, kind, dtype, tuple(shapes), len(self.items)))
        return len(self.items) - 1

    def add_regions(self, name: str, kind: str, dtype: str, regions: Sequence[Region]) -> int:
        """Add a buffer that holds a region on every worker."""
        return self.add(name, kind, dtype, [local_shape(region) for region in regions])

    def use(self, number: int, position: int) -> None:
        """Say that a task at this position reads or writes the buffer; positions come in ascending order."""
        item = self.items[number]
        item.first = position if item.first < 0 else item.first
        item.last = position

    def may_overwrite(self, number: int, dying: int) -> bool:
        """Whether a buffer first written by some task can take the bytes of one last read by that task."""
        new, old = self.items[number], self.items[dying]
        free = "persistent" not in (new.kind, old.kind) and new.first == old.last
        return free and new.shapes == old.shapes and new.dtype == old.dtype

    def overwrite(self, number: int, dying: int) -> None:
        """Let a buffer take the bytes of one that is last read by the task that first writes it."""
        self.items[number].storage = self.items[dying].storage

    def place(self, worker: int, end: int) -> Placed:
        """Return a worker's buffers with their offsets, and the arena's size in bytes.

        Workers whose buffers are of equal shapes share them; `end` is the last task position.
        """
        shapes = tuple(item.shapes[worker] for item in self.items)
        if shapes not in self._placed:
            offsets, size = self._arena(self._spans(worker, end))
            buffers = tuple(_buffer(item, worker, offsets[item.storage], end) for item in self.items)
            self._placed[shapes] = buffers, size
        return self._placed[shapes]

    def _spans(self, worker: int, end: int) -> dict[int, Storage]:
        """Return what each storage of a worker must hold and from when to when."""
        spans: dict[int, Storage] = {}
        for item in self.items:
            nbytes = _nbytes(item, worker)
            first, last = (0, end) if item.kind == "persistent" else (item.first, item.last)
            if item.storage in spans:
                span = spans[item.storage]
                first, last = min(first, span.first), max(last, span.last)
                nbytes = max(nbytes, span.nbytes)
            spans[item.storage] = Storage(nbytes, first, last)
        return spans

    def _arena(self, spans: dict[int, Storage]) -> tuple[dict[int, int], int]:
        pinned = [number for number in spans if self.items[number].kind == "persistent"]
        others = [number for number in spans if self.items[number].kind != "persistent"]
        fixed, free, size = plan_arena([spans[n] for n in pinned], [spans[n] for n in others])
        return dict(zip([*pinned, *others], [*fixed, *free], strict=True)), size


def _nbytes(item: BufferSpec, worker: int) -> int:
    return math.prod(item.shapes[worker]) * (1 if item.dtype == "uint8" else ITEM_BYTES[item.dtype])


def _buffer(item: BufferSpec, worker: int, offset: int, end: int) -> Buffer:
    kept = item.kind == "persistent"
    return Buffer(
        item.name,
        item.shapes[worker],
        item.dtype,
        _nbytes(item, worker),
        offset,
        0 if kept else item.first,
        end if kept else item.last,
        item.kind,
    )
