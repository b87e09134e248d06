"""Local arrays while a program is being laid out: who needs them from when to when, and which may share bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.graph.ir import ITEM_BYTES
from planner.layout import Region, local_shape
from planner.program.arena import Storage, align, plan_arena
from planner.program.tasks import Buffer


@dataclass(slots=True)
class BufferSpec:
    """One buffer of every worker: `shapes` by worker; the positions of its uses, ascending; where its bytes are.

    `storage` is the number of the buffer whose bytes it uses: its own, or that of the one it overwrites in place. These
    are its own for as long as it is used, or for longer where they are `kept`: from one position to another. `slots`
    are as of a Buffer.
    """

    name: str
    kind: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    storage: int
    uses: list[int] = field(default_factory=list)
    kept: tuple[int, int] | None = None
    slots: int = 0

    def span(self, own: Sequence[int] | None, end: int) -> tuple[int, int]:
        """Return from which to which of a worker's positions it is used: at its start where it never is.

        `own` are the worker's positions by common ones, None where it does all tasks, and `end` is its last.
        """
        if self.kind == "persistent":
            return 0, end
        uses = self.uses if own is None else [own[position] for position in self.uses if own[position] >= 0]
        return (uses[0], uses[-1]) if uses else (0, 0)

    def kept_storage(self, own: Sequence[int] | None, span: tuple[int, int], nbytes: int) -> Storage:
        """Return what all its slots take, from when to when they must be kept; `span` is when it is used."""
        first, last = self.kept or (0, -1)
        kept = range(first, last + 1) if own is None else [at for at in own[first : last + 1] if at >= 0]
        size = self.slots * align(nbytes) if self.slots > 1 else nbytes
        return Storage(size, min((*span, *kept[:1])), max((*span, *kept[-1:])))


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
        self.items[number].uses.append(position)

    def may_overwrite(self, number: int, dying: int) -> bool:
        """Whether a buffer first written by some task can take the bytes of one last read by that task."""
        new, old = self.items[number], self.items[dying]
        free = "persistent" not in (new.kind, old.kind) and new.uses[:1] == old.uses[-1:]
        dies = old.kept is None or old.kept[1] <= old.uses[-1]
        return free and dies and new.slots == old.slots and new.shapes == old.shapes and new.dtype == old.dtype

    def overwrite(self, number: int, dying: int) -> None:
        """Let a buffer take the bytes of one that is last read by the task that first writes it."""
        self.items[number].storage = self.items[dying].storage

    def place(self, worker: int, own: tuple[int, ...] | None, end: int) -> Placed:
        """Return a worker's buffers with their offsets, and the arena's size in bytes.

        Workers whose buffers are of equal shapes, and who do the same tasks, share them; `own` and `end` are as in
        `BufferSpec.span`.
        """
        key = own, tuple(item.shapes[worker] for item in self.items)
        if key not in self._placed:
            spans = [item.span(own, end) for item in self.items]
            offsets, size = self._arena(self._storages(worker, own, spans))
            placed = zip(self.items, spans, strict=True)
            buffers = tuple(_buffer(item, worker, offsets[item.storage], span) for item, span in placed)
            self._placed[key] = buffers, size
        return self._placed[key]

    def _storages(
        self, worker: int, own: Sequence[int] | None, of_items: Sequence[tuple[int, int]]
    ) -> dict[int, Storage]:
        """Return what each storage of a worker must hold and from when to when."""
        spans: dict[int, Storage] = {}
        for item, span in zip(self.items, of_items, strict=True):
            storage = item.kept_storage(own, span, _nbytes(item, worker))
            spans[item.storage] = storage.united(spans.get(item.storage, storage))
        return spans

    def _arena(self, spans: dict[int, Storage]) -> tuple[dict[int, int], int]:
        pinned = [number for number in spans if self.items[number].kind == "persistent"]
        others = [number for number in spans if self.items[number].kind != "persistent"]
        fixed, free, size = plan_arena([spans[n] for n in pinned], [spans[n] for n in others])
        return dict(zip([*pinned, *others], [*fixed, *free], strict=True)), size


def _nbytes(item: BufferSpec, worker: int) -> int:
    return math.prod(item.shapes[worker]) * (1 if item.dtype == "uint8" else ITEM_BYTES[item.dtype])


def _buffer(item: BufferSpec, worker: int, offset: int, span: tuple[int, int]) -> Buffer:
    nbytes = _nbytes(item, worker)
    return Buffer(item.name, item.shapes[worker], item.dtype, nbytes, offset, *span, item.kind, item.slots)
