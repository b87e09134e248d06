"""A block, which is a layer or a link of the chain of forward nodes, and its costs for one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import NamedTuple

from simulator.projection.kernels import Work
from simulator.projection.sent import Sent, added
from simulator.projection.stack import Stack


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
