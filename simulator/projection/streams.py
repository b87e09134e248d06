"""The two streams of a device: blocks that compute in turn, and exchanges in turn beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.projection.block import Queue, Queued

WHENEVER = -1


class Exchange(NamedTuple):
    """An exchange, requested when block number `behind` begins, or ends; -1: at once."""

    seconds: float
    behind: int = WHENEVER
    as_it_begins: bool = False


class Computed(NamedTuple):
    """A block that begins when the exchange that it `needs` has ended, if any, and not before `begins_s`.

    Its host also waits until then.
    """

    queued: Queued
    needs: int = WHENEVER
    begins_s: float | None = None


class Ends(NamedTuple):
    """When each block has been computed, and when everything is done, in seconds."""

    blocks_s: tuple[float, ...]
    all_s: float


def beside(blocks: Sequence[Computed], exchanges: Sequence[Exchange], slowdown: float, begun: Queue) -> Ends:
    """Return when both streams end after `begun`. While both are busy, each takes `slowdown` times as long.

    >>> blocks = [Computed(Queued.of([Queue(0, 4, 4)]))] * 2
    >>> beside(blocks, [Exchange(3, 0), Exchange(3, 1)], 1.0, Queue())
    Ends(blocks_s=(4.0, 8.0), all_s=11.0)
    """
    streams = _Streams(blocks, exchanges, slowdown, begun)
    while streams.begin():
        streams.go_on()
    return Ends(tuple(streams.ends_s), streams.now_s)


class _Streams:
    """The state of both streams: the remaining seconds of what each is doing, None if it waits."""

    def __init__(
        self, blocks: Sequence[Computed], exchanges: Sequence[Exchange], slowdown: float, begun: Queue
    ) -> None:
        self._blocks, self._exchanges, self._slowdown = blocks, exchanges, slowdown
        self.now_s, self._launched_s = begun.end_s, begun.host_s
        self.ends_s: list[float] = []
        self._computing: float | None = None
        self._exchanging: float | None = None
        self._idle_until_s = 0.0
        self._items: list[Queue] = []
        self._begun = self._asked = self._arrived = 0

    def begin(self) -> bool:
        """Begin what can begin; return whether either stream is busy."""
        at = self._begun
        if self._computing is None and at < len(self._blocks) and self._arrived > self._blocks[at].needs:
            begins_s = self._blocks[at].begins_s
            self._launched_s = self._launched_s if begins_s is None else max(self.now_s, begins_s)
            self._items = self._items_of(self._blocks[at].queued)
            self._begun += 1
            self._next()
        if self._exchanging is None and self._asked < len(self._exchanges):
            exchange = self._exchanges[self._asked]
            if exchange.behind < (self._begun if exchange.as_it_begins else len(self.ends_s)):
                self._exchanging = exchange.seconds
                self._asked += 1
        return self._computing is not None or self._exchanging is not None

    def _items_of(self, block: Queued) -> list[Queue]:
        """Return a block as one item, or as its kernels if it may wait for its host beside an exchange."""
        waits = self._launched_s + block.whole.end_s > self.now_s + block.whole.device_s
        return [*block.items[::-1]] if waits and self._arrived < len(self._exchanges) else [block.whole]

    def _next(self) -> None:
        """Begin the next item of a block, or end the block."""
        if not self._items:
            self._computing = None
            self.ends_s.append(self.now_s)
            return
        item = self._items.pop()
        self._computing, self._idle_until_s = item.device_s, self._launched_s + item.end_s - item.device_s
        self._launched_s += item.host_s

    def go_on(self) -> None:
        """Advance until a stream finishes its item, or the host has launched what the device waits for."""
        idle_s = 0.0 if self._computing is None else max(0.0, self._idle_until_s - self.now_s)
        idle_s = idle_s if idle_s > ROUNDING * self.now_s else 0.0
        computing = None if idle_s else self._computing
        rate = 1 / self._slowdown if computing and self._exchanging else 1.0
        until = [left / rate for left in (computing, self._exchanging) if left is not None]
        seconds = min([*until, idle_s] if idle_s else until)
        self.now_s += seconds
        if self._exchanging is not None:
            self._exchanging = _left(self._exchanging, seconds * rate)
            if not self._exchanging:
                self._exchanging, self._arrived = None, self._arrived + 1
        if computing is not None:
            self._computing = _left(computing, seconds * rate)
            if not self._computing:
                self._next()


ROUNDING = 1e-12


def _left(seconds: float, done_s: float) -> float:
    """Return the remaining seconds, 0 if they are a rounding error."""
    left = seconds - done_s
    return left if left > ROUNDING * seconds else 0.0
