"""A block: a layer, or a link of the chain of forward nodes, and what it takes a worker for one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from simulator.projection.kernels import Work
from simulator.projection.sent import Sent, added
from simulator.projection.stack import Stack


@dataclass(frozen=True, slots=True)
class Part:
    """Work on the device, seconds of exchanges among inner workers, and how many these are.

    So many seconds of them are `in_pieces`: gathers and reductions, of which products can go on with a piece. `sent`
    are the bytes that a worker sends for them.
    """

    work: Work = field(default_factory=Work)
    exchanged_s: float = 0.0
    in_pieces_s: float = 0.0
    exchanges: int = 0
    sent: Sent = field(default_factory=dict)

    def __add__(self, other: Part) -> Part:
        """Do both."""
        exchanged_s, in_pieces_s = self.exchanged_s + other.exchanged_s, self.in_pieces_s + other.in_pieces_s
        exchanges, sent = self.exchanges + other.exchanges, added((self.sent, other.sent))
        return Part(self.work + other.work, exchanged_s, in_pieces_s, exchanges, sent)

    @property
    def device_s(self) -> float:
        """Seconds of the device and its exchanges."""
        return self.work.seconds + self.exchanged_s

    def host_s(self, stack: Stack) -> float:
        """Seconds of the host that launches its kernels and exchanges."""
        return self.work.launches * stack.host_s + self.exchanges * stack.host_exchange_s

    def seconds(self, stack: Stack) -> float:
        """Seconds, of the device or of the host."""
        return max(self.device_s, self.host_s(stack))

    def hiding(self, pieces: int, slowdown: float) -> Part:
        """Return it with exchanges in so many pieces, of which all but one are made while there is work."""
        hidden_s = min(self.in_pieces_s * (1 - 1 / pieces), self.work.seconds)
        return replace(self, exchanged_s=self.exchanged_s + (slowdown - 2) * hidden_s)


def queued_s(parts: Iterable[Part], stack: Stack, begun_s: float = 0.0) -> float:
    """Return the seconds of parts in turn that the device begins when it is free and the host has launched them.

    The host begins to launch at `begun_s`.
    """
    launched, ended = begun_s, 0.0
    for part in parts:
        begun, launched = max(ended, launched), launched + part.host_s(stack)
        ended = max(begun + part.device_s, launched)
    return ended


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
        slow = self._with_parts(lambda part: replace(part, work=part.work.slowed(factor)))
        return replace(slow, once=self.once.slowed(factor))

    def hiding(self, pieces: int, slowdown: float) -> Block:
        """Return it with exchanges that are made in pieces beside its work."""
        return self._with_parts(lambda part: part.hiding(pieces, slowdown))

    def _with_parts(self, changed: Callable[[Part], Part]) -> Block:
        forward, backward, weights, selected = map(changed, (self.forward, self.backward, self.weights, self.selected))
        return replace(self, forward=forward, backward=backward, weights=weights, selected=selected)
