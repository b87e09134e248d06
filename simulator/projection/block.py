"""A block, which is a layer or a link of the chain of forward nodes, and its costs for one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import NamedTuple

from simulator.projection.kernels import Work
from simulator.projection.stack import Sent, Stack, added


class Exchanged(NamedTuple):
    """An exchange among the workers of a replica: its seconds, and the bytes that a worker sends.

    If it is made `in_pieces`, products can start with the first piece.
    """

    seconds: float
    sent: Sent
    in_pieces: bool = False


class Queue(NamedTuple):
    """A sequence of kernels and exchanges. Each starts when the device is free and the host has launched it.

    Seconds of the host, of the device, and until the end if both start at once.
    """

    host_s: float = 0.0
    device_s: float = 0.0
    end_s: float = 0.0

    def then(self, other: Queue) -> Queue:
        """Return this sequence followed by another.

        >>> Queue(1.0, 5.0, 6.0).then(Queue(9.0, 2.0, 10.0))
        Queue(host_s=10.0, device_s=7.0, end_s=11.0)
        """
        end_s = max(self.end_s + other.device_s, self.host_s + other.end_s)
        return Queue(self.host_s + other.host_s, self.device_s + other.device_s, end_s)

    def times(self, count: int) -> Queue:
        """Return this sequence repeated `count` times."""
        if not count:
            return Queue()
        end_s = self.end_s + (count - 1) * max(self.host_s, self.device_s)
        return Queue(count * self.host_s, count * self.device_s, end_s)


class Queued(NamedTuple):
    """The queues of the kernels and exchanges of a part, and their sequence as one queue."""

    whole: Queue
    items: tuple[Queue, ...]

    @classmethod
    def of(cls, items: Iterable[Queue]) -> Queued:
        """Return the items in sequence."""
        in_turn = tuple(items)
        return cls(reduce(Queue.then, in_turn, Queue()), in_turn)


@dataclass(frozen=True)
class Part:
    """A sequence of kernels on a device and exchanges among the workers of a replica."""

    items: tuple[Work | Exchanged, ...] = ()

    def __add__(self, other: Part) -> Part:
        """Return both, one after the other."""
        return Part(self.items + other.items)

    @cached_property
    def work(self) -> Work:
        """The work of all kernels."""
        return sum((item for item in self.items if isinstance(item, Work)), Work())

    @cached_property
    def exchanges(self) -> tuple[Exchanged, ...]:
        """All exchanges."""
        return tuple(item for item in self.items if isinstance(item, Exchanged))

    @cached_property
    def exchanged_s(self) -> float:
        """Seconds of all exchanges."""
        return sum(exchange.seconds for exchange in self.exchanges)

    @cached_property
    def sent(self) -> Sent:
        """Bytes that a worker sends for the exchanges."""
        return added(exchange.sent for exchange in self.exchanges)

    @cached_property
    def in_pieces_s(self) -> float:
        """Seconds of the exchanges that are made in pieces."""
        return sum(exchange.seconds for exchange in self.exchanges if exchange.in_pieces)

    @cached_property
    def device_s(self) -> float:
        """Seconds of kernels and exchanges."""
        return self.work.seconds + self.exchanged_s

    def host_s(self, stack: Stack) -> float:
        """Seconds in which the host launches kernels and exchanges."""
        return self.work.launches * stack.host_s + len(self.exchanges) * stack.host_exchange_s

    def seconds(self, stack: Stack) -> float:
        """Seconds of the device or of the host, whichever is longer."""
        return max(self.device_s, self.host_s(stack))

    def queued(self, stack: Stack) -> Queued:
        """Return the part as a queue for a device and its host."""
        return Queued.of(_queue(item, stack) for item in self.items)

    def hiding(self, pieces: int, slowdown: float) -> Part:
        """Return the part with exchanges split into `pieces`, all but one of which overlap with computation."""
        if not self.in_pieces_s:
            return self
        hidden_s = min(self.in_pieces_s * (1 - 1 / pieces), self.work.seconds)
        left = 1 + (slowdown - 2) * hidden_s / self.in_pieces_s
        return Part(
            tuple(
                Exchanged(item.seconds * left, item.sent, True)
                if isinstance(item, Exchanged) and item.in_pieces
                else item
                for item in self.items
            )
        )

    def slowed(self, factor: float) -> Part:
        """Return the part on a device whose kernels take `factor` times as long."""
        return Part(tuple(item.slowed(factor) if isinstance(item, Work) else item for item in self.items))


def _queue(item: Work | Exchanged, stack: Stack) -> Queue:
    """Return the queue of an item. An exchange is one launch; kernels are equal, with one launch each."""
    if isinstance(item, Exchanged):
        return Queue(stack.host_exchange_s, item.seconds, stack.host_exchange_s + item.seconds)
    if not item.launches:
        return Queue(0.0, item.seconds, item.seconds)
    kernel_s = item.seconds / item.launches
    return Queue(stack.host_s, kernel_s, stack.host_s + kernel_s).times(item.launches)


@dataclass(frozen=True, slots=True)
class Block:
    """The cost of a block to a worker for one micro-batch, and the memory it takes.

    A layer is a segment of run number `run` of repeated segments; other blocks have None. `weights` is the part of
    `backward` that computes gradients of weights; `selected` is the part of `forward` that selective recomputation
    repeats. `once` is done once per iteration; `reduced_s` are the seconds of exchanges among tensor parallel workers
    once per iteration, and `reduced` the bytes each of them sends. `repeated_operations` are the flop of products
    beyond the worker's even share of the model's. Sizes in bytes: weights in the dtype of computation, masters of
    weights that are copies in another dtype, optimizer states, gradients as computed, activations kept for the backward
    pass, activations that are recomputed, what later blocks read, and the largest gradient of an activation.
    `parameters` is a worker's number of weight elements, in `weight_tensors` tensors; `expert_share` is the fraction
    that belongs to experts.
    """

    run: int | None = None
    forward: Part = field(default_factory=Part)
    backward: Part = field(default_factory=Part)
    weights: Part = field(default_factory=Part)
    selected: Part = field(default_factory=Part)
    once: Work = field(default_factory=Work)
    reduced_s: float = 0.0
    reduced: Sent = field(default_factory=dict)
    repeated_operations: float = 0.0
    parameters: int = 0
    expert_share: float = 0.0
    weight_tensors: int = 0
    weight_bytes: int = 0
    master_bytes: int = 0
    state_bytes: int = 0
    gradient_bytes: int = 0
    kept_bytes: int = 0
    selected_bytes: int = 0
    boundary_bytes: int = 0
    largest_bytes: int = 0

    @property
    def is_layer(self) -> bool:
        """True for a repeated segment."""
        return self.run is not None

    def slowed(self, factor: float) -> Block:
        """Return the block on a device whose kernels take `factor` times as long."""
        slow = self._with_parts(lambda part: part.slowed(factor))
        return replace(slow, once=self.once.slowed(factor))

    def hiding(self, pieces: int, slowdown: float) -> Block:
        """Return the block with exchanges in pieces that overlap with its work."""
        return self._with_parts(lambda part: part.hiding(pieces, slowdown))

    def _with_parts(self, changed: Callable[[Part], Part]) -> Block:
        forward, backward, weights, selected = map(changed, (self.forward, self.backward, self.weights, self.selected))
        return replace(self, forward=forward, backward=backward, weights=weights, selected=selected)


# The two streams of a device: blocks that compute in turn, and exchanges in turn beside them.


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
