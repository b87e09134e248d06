"""A block: a layer, or a link of the chain of forward nodes, and what it takes a worker for one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import NamedTuple

from simulator.projection.kernels import Work
from simulator.projection.sent import Sent, added
from simulator.projection.stack import Stack


class Exchanged(NamedTuple):
    """Seconds of an exchange among inner workers, and the bytes that a worker sends for it.

    Products can go on with a piece of one that is made `in_pieces`.
    """

    seconds: float
    sent: Sent
    in_pieces: bool = False


class Queue(NamedTuple):
    """Kernels and exchanges in turn, each of which the device begins when it is free and the host has launched it.

    Seconds of the host, of the device, and until the end where both begin at once.
    """

    host_s: float = 0.0
    device_s: float = 0.0
    end_s: float = 0.0

    def then(self, other: Queue) -> Queue:
        """Do the other after it.

        >>> Queue(1.0, 5.0, 6.0).then(Queue(9.0, 2.0, 10.0))
        Queue(host_s=10.0, device_s=7.0, end_s=11.0)
        """
        end_s = max(self.end_s + other.device_s, self.host_s + other.end_s)
        return Queue(self.host_s + other.host_s, self.device_s + other.device_s, end_s)

    def times(self, count: int) -> Queue:
        """Do it so many times, in turn."""
        if not count:
            return Queue()
        end_s = self.end_s + (count - 1) * max(self.host_s, self.device_s)
        return Queue(count * self.host_s, count * self.device_s, end_s)


class Queued(NamedTuple):
    """A queue of a part's kernels and exchanges, and of them all as one."""

    whole: Queue
    items: tuple[Queue, ...]

    @classmethod
    def of(cls, items: Iterable[Queue]) -> Queued:
        """Return them in turn."""
        in_turn = tuple(items)
        return cls(reduce(Queue.then, in_turn, Queue()), in_turn)


@dataclass(frozen=True)
class Part:
    """Kernels of a device and exchanges among inner workers, in turn."""

    items: tuple[Work | Exchanged, ...] = ()

    def __add__(self, other: Part) -> Part:
        """Do both, one after the other."""
        return Part(self.items + other.items)

    @cached_property
    def work(self) -> Work:
        """All kernels."""
        return sum((item for item in self.items if isinstance(item, Work)), Work())

    @cached_property
    def exchanges(self) -> tuple[Exchanged, ...]:
        """All exchanges."""
        return tuple(item for item in self.items if isinstance(item, Exchanged))

    @cached_property
    def exchanged_s(self) -> float:
        """Seconds of exchanges."""
        return sum(exchange.seconds for exchange in self.exchanges)

    @cached_property
    def sent(self) -> Sent:
        """Bytes that a worker sends for them."""
        return added(exchange.sent for exchange in self.exchanges)

    @cached_property
    def in_pieces_s(self) -> float:
        """Seconds of those that are made in pieces."""
        return sum(exchange.seconds for exchange in self.exchanges if exchange.in_pieces)

    @cached_property
    def device_s(self) -> float:
        """Seconds of the device and its exchanges."""
        return self.work.seconds + self.exchanged_s

    def host_s(self, stack: Stack) -> float:
        """Seconds of the host that launches its kernels and exchanges."""
        return self.work.launches * stack.host_s + len(self.exchanges) * stack.host_exchange_s

    def seconds(self, stack: Stack) -> float:
        """Seconds, of the device or of the host."""
        return max(self.device_s, self.host_s(stack))

    def queued(self, stack: Stack) -> Queued:
        """Return what it takes a device and its host."""
        return Queued.of(_queue(item, stack) for item in self.items)

    def hiding(self, pieces: int, slowdown: float) -> Part:
        """Return it with exchanges in so many pieces, of which all but one are made while there is work."""
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
        """Return it on a device whose kernels take so many times as long."""
        return Part(tuple(item.slowed(factor) if isinstance(item, Work) else item for item in self.items))


def _queue(item: Work | Exchanged, stack: Stack) -> Queue:
    """Return what an item takes: an exchange one launch; kernels as long each, one launch each."""
    if isinstance(item, Exchanged):
        return Queue(stack.host_exchange_s, item.seconds, stack.host_exchange_s + item.seconds)
    if not item.launches:
        return Queue(0.0, item.seconds, item.seconds)
    kernel_s = item.seconds / item.launches
    return Queue(stack.host_s, kernel_s, stack.host_s + kernel_s).times(item.launches)


@dataclass(frozen=True, slots=True)
class Block:
    """What a block takes a worker for one micro-batch, and what it holds.

    A layer is a segment of the `run`-th run of segments that repeat; None: it is no layer.
    `weights` is the part of `backward` that makes gradients of weights; `selected` that of `forward` that is done again
    under selective recomputation. `once` is done once in an iteration, and `reduced_s` exchanged among tensor parallel
    workers, each of whom sends the bytes `reduced`. `repeated_operations` of products are those beyond its even part of
    the model's. Bytes: of weights as they are computed with, of masters of those that are copies in another dtype, of
    states of the optimizer, of gradients as computed, of activations that are kept for the backward pass, of those that
    are computed again, of what later blocks read, of the largest gradient of an activation. `parameters` are a worker's
    elements of weights, of so many `weight_tensors`; `expert_share` is the part of them, and so of all that is held for
    weights, that is of experts.
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
        """True for a segment that repeats."""
        return self.run is not None

    def slowed(self, factor: float) -> Block:
        """Return it on a device whose kernels take so many times as long."""
        slow = self._with_parts(lambda part: part.slowed(factor))
        return replace(slow, once=self.once.slowed(factor))

    def hiding(self, pieces: int, slowdown: float) -> Block:
        """Return it with exchanges that are made in pieces beside its work."""
        return self._with_parts(lambda part: part.hiding(pieces, slowdown))

    def _with_parts(self, changed: Callable[[Part], Part]) -> Block:
        forward, backward, weights, selected = map(changed, (self.forward, self.backward, self.weights, self.selected))
        return replace(self, forward=forward, backward=backward, weights=weights, selected=selected)
