"""A perceptron of four layers on two ranks, written by hand: NumPy over windows of MPI that both ranks map.

Layers are split by columns, then rows, as the plan has it: mpirun -n 2 python -m results.transports.mlp measures it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Array = NDArray[np.float32]
BLOCK = 1 << 16
"""Elements that an update works on at a time: weights, gradients and velocities of a block stay in the cache."""


def window(comm: MPI.Intracomm, shape: tuple[int, int], owner: int) -> Array:
    """Return an array that all ranks map (collective)."""
    nbytes = 4 * shape[0] * shape[1] if comm.Get_rank() == owner else 0
    memory, _ = MPI.Win.Allocate_shared(nbytes, 1, comm=comm).Shared_query(owner)
    array: Array = np.frombuffer(memory, np.float32).reshape(shape)  # type: ignore[call-overload]  # a buffer of MPI's
    return array


class ByHand:
    """One rank's share.

    `weights` are its halves, by column, row, column, row; `images` whole; `labels` of its rows; `rates` of learning and
    momentum.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        weights: list[Array],
        images: Array,
        labels: NDArray[np.int64],
        rates: tuple[float, float],
    ) -> None:
        self._comm, self._lr, self._momentum = comm, np.float32(rates[0]), np.float32(rates[1])
        self._w = [np.array(w) for w in weights]
        self._v = [np.zeros_like(w) for w in self._w]
        self._g = [np.empty_like(w) for w in self._w]
        self._x, self._labels = np.array(images), labels
        batch, width = images.shape
        self._batch, half = batch, width // 2
        me, start = comm.Get_rank(), comm.Get_rank() * batch // 2
        self._rows = slice(start, start + batch // 2)
        self._partial = [window(comm, (batch, width), rank) for rank in (0, 1)]
        self._own = self._partial[me]
        self._a2, self._g4, self._g2 = (window(comm, (batch, width), 0) for _ in range(3))
        self._a1, self._a3, self._g1, self._g3 = (np.empty((batch, half), np.float32) for _ in range(4))

    def products(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield the step's matrix products in order: operands and result."""
        w, g = self._w, self._g
        yield self._x, w[0], self._a1
        yield self._a1, w[1], self._own
        yield self._a2, w[2], self._a3
        yield self._a3, w[3], self._own
        yield self._g4, w[3].T, self._g3
        yield self._a3.T, self._g4, g[3]
        yield self._g3, w[2].T, self._own
        yield self._a2.T, self._g3, g[2]
        yield self._g2, w[1].T, self._g1
        yield self._a1.T, self._g2, g[1]
        yield self._x.T, self._g1, g[0]

    def multiply(self) -> None:
        """Do the products alone, with nobody waiting for anybody."""
        for a, b, out in self.products():
            np.matmul(a, b, out=out)

    def step(self) -> float:
        """Train one step; return this rank's part of the loss."""
        products = self.products()

        def multiply(count: int = 1) -> None:
            for _ in range(count):
                a, b, out = next(products)
                np.matmul(a, b, out=out)

        multiply()
        np.maximum(self._a1, 0, out=self._a1)
        multiply()
        with self._summing(self._a2) as mine:
            np.maximum(mine, 0, out=mine)
        multiply()
        np.maximum(self._a3, 0, out=self._a3)
        multiply()
        with self._summing(self._g4) as mine:
            loss = self._differentiate(mine)
        multiply()
        np.multiply(self._g3, self._a3 > 0, out=self._g3)
        multiply(2)
        with self._summing(self._g2) as mine:
            np.multiply(mine, self._a2[self._rows] > 0, out=mine)
        multiply(2)
        np.multiply(self._g1, self._a1 > 0, out=self._g1)
        multiply(2)
        for weight, velocity, gradient in zip(self._w, self._v, self._g, strict=True):
            self._update(weight.reshape(-1), velocity.reshape(-1), gradient.reshape(-1))
        return loss

    @contextmanager
    def _summing(self, out: Array) -> Iterator[Array]:
        """Add up both ranks' terms of this rank's rows, to go on with them before both read them."""
        rows = self._rows
        self._comm.Barrier()
        yield np.add(self._partial[0][rows], self._partial[1][rows], out=out[rows])
        self._comm.Barrier()

    def _differentiate(self, logits: Array) -> float:
        """Overwrite logits by the loss's gradient; return the loss."""
        logits -= logits.max(axis=1, keepdims=True)
        each = np.arange(len(self._labels))
        right = logits[each, self._labels]
        np.exp(logits, out=logits)
        total = logits.sum(axis=1, keepdims=True)
        logits /= total * self._batch
        logits[each, self._labels] -= np.float32(1 / self._batch)
        return float((np.log(total[:, 0]) - right).sum() / self._batch)

    def _update(self, weight: Array, velocity: Array, gradient: Array) -> None:
        for start in range(0, weight.size, BLOCK):
            block = slice(start, start + BLOCK)
            velocity[block] *= self._momentum
            velocity[block] += gradient[block]
            gradient[block] = self._lr * velocity[block]
            weight[block] -= gradient[block]
