"""What every data set has, and the order in which one that is finite shows its samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from executor.values import Array, ArrayModule, Tile, hashed, stream
from planner.graph.ir import Graph, Tensor

Numbers = NDArray[np.int64]

REMEMBERED_EPOCHS = 4
"""A batch lies in few epochs that follow one another; earlier ones never return."""


class DataSet(Protocol):
    """Values for the graph's inputs, batch after batch; all that they depend on is in `identity`, seed and step."""

    @property
    def identity(self) -> str:
        """What a checkpoint knows the data set by: other data has another."""

    @property
    def steps_per_epoch(self) -> int:
        """After how many steps every sample has been seen once, rounded up."""

    @property
    def held_out(self) -> HeldOut | None:
        """Samples that training never sees, in batches; None where there are none."""

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`, as it is at a step counted from 0."""


class Samples(Protocol):
    """Samples in host memory."""

    @property
    def count(self) -> int:
        """How many there are."""

    def write(self, xp: ArrayModule, out: Array, tile: Tile, chosen: Callable[[Numbers], Numbers]) -> None:
        """Write an input's tile into `out`; `chosen` says which samples lie at given places of the batch."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Samples that training never sees, in batches of a fixed order.

    Those scored by right answers ("logits") fill the last batch up with the last sample; "loss" is of whole batches.
    """

    samples: Samples
    batch: int
    metric: Literal["logits", "loss"]

    @property
    def count(self) -> int:
        """How many samples there are."""
        return self.samples.count

    @property
    def steps_per_epoch(self) -> int:
        """How many batches are scored."""
        return self.count // self.batch if self.metric == "loss" else -(-self.count // self.batch)

    def real(self, step: int) -> int:
        """Return how many samples of a batch do not just fill it up."""
        return min(self.batch, self.count - step * self.batch)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        self.samples.write(xp, out, tile, lambda places: np.minimum(places + step * self.batch, self.count - 1))


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Samples in batches; if `mixed`, in an order that is new in every epoch and follows from name, seed and epoch.

    `digest` is of the samples, where not every copy of the project has the same.
    """

    name: str
    samples: Samples
    batch: int
    seed: int
    held_out: HeldOut | None
    digest: str = ""
    mixed: bool = True

    @property
    def identity(self) -> str:
        """What a checkpoint knows the data set by."""
        return f"{self.name} {self.digest}" if self.digest else self.name

    @property
    def steps_per_epoch(self) -> int:
        """After how many steps every sample has been seen, rounded up."""
        return -(-self.samples.count // self.batch)

    def fill(self, xp: ArrayModule, out: Array, tile: Tile, step: int) -> None:
        """Write an input's tile into `out`; see DataSet."""
        self.samples.write(xp, out, tile, lambda places: self._chosen(places + step * self.batch))

    def _chosen(self, places: Numbers) -> Numbers:
        """Return the samples at places in the endless sequence of epochs."""
        epochs, within = np.divmod(places, self.samples.count)
        if not self.mixed:
            return within
        numbers = np.empty_like(within)
        for epoch in np.unique(epochs).tolist():
            now = epochs == epoch
            numbers[now] = epoch_order(self.seed, self.name, epoch, self.samples.count)[within[now]]
        return numbers


def permutation(number: np.uint64, count: int) -> Numbers:
    """Return a permutation of `count` numbers that is a function of a stream alone."""
    order: Numbers = np.argsort(hashed(np.arange(count, dtype=np.uint64), number), kind="stable")
    return order


@lru_cache(REMEMBERED_EPOCHS)
def epoch_order(seed: int, name: str, epoch: int, count: int) -> Numbers:
    """Return the order of the samples in an epoch of the data set of this name."""
    return permutation(stream(seed, f"{name}/epoch", epoch), count)


def data_tensors(graph: Graph) -> tuple[Tensor, ...]:
    """Return the graph's tensors that a data set provides."""
    return tuple(t for t in graph.tensors.values() if t.init is not None and t.init.kind == "data")
