"""Replicas at work on other samples: whatever a worker does with a node is a line over the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from simulator.projection.replica import NodeShare, Replica, Transfer, rows_read
from simulator.projection.sent import added, times
from topologies.kernels import Attention, Product

Shape = TypeVar("Shape", Product, Attention)
EXTENTS = {Product: ("batch", "m", "n", "k"), Attention: ("rows", "scores")}


def between(low: Replica, high: Replica, part: float, samples: float) -> Replica:
    """Return the replica at work on so many `samples`, as parts of the second's, of which the first has `part`.

    Exchanges of sums are those of the second, in which data parallel workers have none; others that the two have not
    in common grow with samples. Of what does not, as weights, no more is read than there is.
    """
    line = _Line(low, high, samples, (samples - part) / (1 - part))
    shares = tuple(map(line.share, low.shares, high.shares))
    return replace(high, shares=shares, held=line.sizes(low.held, high.held))


@dataclass(frozen=True, slots=True)
class _Line:
    """The line through what two replicas do; the one sought is `at` 0 where the first is, at 1 where the second is."""

    low: Replica
    high: Replica
    samples: float
    at: float

    def share(self, first: NodeShare, second: NodeShare) -> NodeShare:
        reads, writes = self._reads(first.reads, second.reads), self.sizes(first.writes, second.writes)
        alike = len(first.products) == len(second.products)
        return replace(
            second,
            operations=max(0.0, first.operations + (second.operations - first.operations) * self.at),
            reads=rows_read(second.node, second.traits, reads, writes, self.high.held),
            writes=writes,
            products=tuple(map(self._shape, first.products, second.products)) if alike else second.products,
            attention=self._shape(first.attention, second.attention) if first.attention and second.attention else None,
            before=self._transfers(first.before, second.before),
            after=self._transfers(first.after, second.after),
        )

    def sizes(self, first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
        return {name: self._size(first[name], nbytes) for name, nbytes in second.items()}

    def _size(self, first: float, second: float) -> int:
        return max(0, round(first + (second - first) * self.at))

    def _reads(self, first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
        low, high = self.low.held, self.high.held
        most = {name: max(high[name], nbytes) for name, nbytes in second.items() if low[name] == high[name]}
        return {name: min(nbytes, most.get(name, nbytes)) for name, nbytes in self.sizes(first, second).items()}

    def _shape(self, first: Shape, second: Shape) -> Shape:
        extents = ((name, getattr(first, name), getattr(second, name)) for name in EXTENTS[type(second)])
        sizes: dict[str, Any] = {name: max(1, self._size(*ends)) for name, *ends in extents}
        return replace(second, **sizes)

    def _transfers(self, first: tuple[Transfer, ...], second: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        if [transfer.kind for transfer in first] != [transfer.kind for transfer in second]:
            often = self.samples
            return tuple(replace(t, nbytes=round(often * t.nbytes), sent=times(often, t.sent)) for t in second)
        return tuple(map(self._transfer, first, second))

    def _transfer(self, first: Transfer, second: Transfer) -> Transfer:
        sent = added((times(1 - self.at, first.sent), times(self.at, second.sent)))
        return replace(second, nbytes=self._size(first.nbytes, second.nbytes), sent=sent)
