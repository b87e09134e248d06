"""Conversions of a tensor from one layout to another, composed of atomic ones (DistPar A.1 to A.3).

An atomic conversion changes the placement at one step, among the workers that differ in this step's digit only. From
these every other conversion is made: one after the other is the source's "division", the choice between several the
"or". Together they are the shortest path over intermediate layouts, by elements moved, then by conversions.

What an atomic conversion moves is counted on the very exchanges that plans use; `closed` says it as a formula.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count as counter, product
from math import prod

from planner.layout.communication import Exchange
from planner.layout.geometry import Production, owned_by_all, steps_with, store
from planner.layout.region import eligible, nothing
from planner.layout.ways import (
    PARTIAL,
    REPLICATE,
    At,
    Layout,
    Partial,
    Placement,
    Replicate,
    Shard,
    Ways,
)

ATOMS: dict[tuple[type[Placement], type[Placement]], str] = {
    (Shard, Shard): "all-to-all",
    (Shard, Replicate): "all-gather",
    (Replicate, Shard): "local slice",
    (Partial, Shard): "reduce-scatter",
    (Partial, Replicate): "all-reduce",
    (Replicate, Partial): "I2P",
}
"""What takes one placement to another; the identity is to do nothing, and a shard becomes a term by way of a copy.

I2P makes a term of a copy: the worker with digit 0 keeps it, the others hold zeros.
"""

SEND = "send"
"""From one set of workers to another: every worker pulls what it is to hold, of copies from one."""

PART_MOVED: dict[str, Callable[[int], Fraction]] = {
    "all-to-all": lambda n: Fraction(n - 1, n),
    "all-gather": lambda n: Fraction(n - 1),
    "local slice": lambda _: Fraction(0),
    "reduce-scatter": lambda n: Fraction(n - 1),
    "all-reduce": lambda n: Fraction(2 * (n - 1)),
    "I2P": lambda _: Fraction(0),
}
"""What n workers move, in tensors; of an all-to-all where extents divide, of all others always."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One atomic conversion: at `step`, or between the two sets of workers (None). `elements` are those that move."""

    atom: str
    step: int | None
    source: Layout
    target: Layout
    exchanges: tuple[Exchange, ...]
    elements: int

    def __str__(self) -> str:
        return f"{self.atom} to {','.join(map(str, self.target)) or 'one worker'}"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A tensor's way from one layout to another, in order."""

    source: Layout
    target: Layout
    hops: tuple[Hop, ...]

    @property
    def elements(self) -> int:
        """Elements moved, summed over workers."""
        return sum(hop.elements for hop in self.hops)

    def __str__(self) -> str:
        return ", ".join(map(str, self.hops)) or "identity"


def direct(shape: tuple[int, ...], source: Layout, target: Layout, ways: tuple[int, ...]) -> tuple[Exchange, ...]:
    """Return the exchanges that take a tensor from one layout to another at once, as plans store a result.

    Where it becomes partial, a copy's digit 0 keeps it and a shard is padded with zeros: neither moves.
    """
    divided = Ways(ways)
    production = Production(
        shape,
        owned_by_all(shape, source, divided),
        source,
        steps_with(source, Partial),
        steps_with(source, Replicate),
        "Sum",
    )
    return store(production, tuple(map(_kept, source, target)), divided)


def _kept(source: Placement, target: Placement) -> Placement:
    """Return what a worker must hold at a step of which a target placement says what it means."""
    if target != PARTIAL or source == PARTIAL:
        return target
    return At(0) if source == REPLICATE else source


def send(
    shape: tuple[int, ...], source: Layout, ways: tuple[int, ...], target: Layout, target_ways: tuple[int, ...]
) -> Exchange:
    """Return the exchange from one set of workers to another, numbered one after the other."""
    held = owned_by_all(shape, _alone(source, Replicate), Ways(ways))
    wanted = owned_by_all(shape, _alone(target, Partial), Ways(target_ways))
    none = (nothing(shape),)
    everyone = (len(held) + len(wanted),)
    reducer = "Sum" if PARTIAL in source else None
    return Exchange(Ways(everyone), held + none * len(wanted), none * len(held) + wanted, frozenset(), reducer)


def _alone(layout: Layout, kind: type[Placement]) -> Layout:
    return tuple(At(0) if isinstance(placement, kind) else placement for placement in layout)


@cache
def every_layout(shape: tuple[int, ...], ways: tuple[int, ...]) -> tuple[Layout, ...]:
    """Return every layout of a tensor: at each step sharded where it can be, replicated or partial."""

    def at(step: int) -> tuple[Placement, ...]:
        return (
            *(Shard(dim) for dim, extent in enumerate(shape) if eligible(extent, Ways(ways), step)),
            REPLICATE,
            PARTIAL,
        )

    return tuple(product(*map(at, range(len(ways)))))


def convert(
    shape: tuple[int, ...],
    source: Layout,
    target: Layout,
    ways: tuple[int, ...],
    target_ways: tuple[int, ...] | None = None,
) -> Conversion:
    """Return the conversion that moves least; with `target_ways` to another, disjoint set of workers."""
    return conversions(shape, source, ways, target_ways)[target]


Place = tuple[bool, Layout]
"""Whether the tensor is with the other set of workers already, and its layout there."""


@cache
def conversions(
    shape: tuple[int, ...], source: Layout, ways: tuple[int, ...], target_ways: tuple[int, ...] | None = None
) -> dict[Layout, Conversion]:
    """Return the conversion that moves least from one layout to every other: shortest paths (Dijkstra)."""
    numbers = counter()
    start: Place = (False, source)
    waiting: list[tuple[int, int, int, Place, tuple[Hop, ...]]] = [(0, 0, next(numbers), start, ())]
    paths: dict[Place, tuple[Hop, ...]] = {}
    while waiting:
        elements, hops, _, place, path = heapq.heappop(waiting)
        if place in paths:
            continue
        paths[place] = path
        for there, hop in _hops(shape, place, ways, target_ways):
            if there not in paths:
                entry = (elements + hop.elements, hops + 1, next(numbers), there, (*path, hop))
                heapq.heappush(waiting, entry)
    across = target_ways is not None
    return {layout: Conversion(source, layout, path) for (there, layout), path in paths.items() if there == across}


def _hops(
    shape: tuple[int, ...], place: Place, ways: tuple[int, ...], target_ways: tuple[int, ...] | None
) -> Iterator[tuple[Place, Hop]]:
    across, layout = place
    here = target_ways if across and target_ways is not None else ways
    for hop in _within(shape, layout, here):
        yield (across, hop.target), hop
    if target_ways is not None and not across:
        for target in every_layout(shape, target_ways):
            yield (True, target), _sent(shape, layout, ways, target, target_ways)


@cache
def _within(shape: tuple[int, ...], source: Layout, ways: tuple[int, ...]) -> tuple[Hop, ...]:
    """Return every atomic conversion of a layout among the same workers."""
    hops = []
    for target in every_layout(shape, ways):
        changed = [step for step, (before, after) in enumerate(zip(source, target, strict=True)) if before != after]
        if len(changed) != 1:
            continue
        atom = ATOMS.get((type(source[changed[0]]), type(target[changed[0]])))
        if atom is not None:
            hops.append(_hop(atom, changed[0], source, target, direct(shape, source, target, ways)))
    return tuple(hops)


@cache
def _sent(
    shape: tuple[int, ...], source: Layout, ways: tuple[int, ...], target: Layout, target_ways: tuple[int, ...]
) -> Hop:
    return _hop(SEND, None, source, target, (send(shape, source, ways, target, target_ways),))


def _hop(atom: str, step: int | None, source: Layout, target: Layout, exchanges: tuple[Exchange, ...]) -> Hop:
    return Hop(atom, step, source, target, exchanges, sum(int(exchange.moved().sum()) for exchange in exchanges))


def closed(hop: Hop, shape: tuple[int, ...], ways: tuple[int, ...]) -> Fraction:
    """Return the elements that an atomic conversion among the same workers moves where extents divide.

    Every group of workers that differ at the hop's step converts what it holds together: a part of the tensor, and
    the same part as other groups where those are copies or terms.
    """
    if hop.step is None:
        raise ValueError("expected a conversion at one step, found one between two sets of workers")
    others = [way for step, way in enumerate(ways) if step != hop.step and not isinstance(hop.source[step], Shard)]
    return prod(shape) * prod(others) * PART_MOVED[hop.atom](ways[hop.step])
