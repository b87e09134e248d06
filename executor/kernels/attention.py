"""Attention in blocks of query rows, so only a few rows of its matrix exist at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from executor.kernels.call import Array, Kernel, KernelCall
from executor.kernels.elementwise import spread

BLOCK_SCORES, DEVICE_BLOCK_SCORES = 1 << 20, 1 << 26
"""Scores in a block of rows, over all heads and samples, on a host and on a GPU. A block has at least one row."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of attention that a call computes. Heads are split into groups and the heads of a group."""

    call: KernelCall
    query: Array
    key: Array
    bias: Array | None

    @classmethod
    def of(cls, call: KernelCall, query: Array, key: Array, *biases: Array) -> Part:
        """Return the part, given operands [b, h, q, c] and [b, g, k, c], and optionally a bias."""
        bias = None
        if biases:
            bias = spread(biases[0], call.integers("dims"), 4)
            bias = apart(call, bias) if bias.shape[1] > 1 else bias[:, None]
        return cls(call, apart(call, query), key[:, :, None], bias)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of query rows, each with the keys that any of its rows attends to."""
        length, keys = self.query.shape[3], self.key.shape[3]
        row_scores = max(1, self.query[:, :, :, 0, 0].size * keys)
        limit = BLOCK_SCORES if self.call.xp is np else DEVICE_BLOCK_SCORES
        count = max(1, limit // row_scores)
        for start in range(0, length, count):
            stop = min(start + count, length)
            yield slice(start, stop), slice(0, self._reach(stop, keys))

    def _reach(self, stop: int, keys: int) -> int:
        if not self.call.flag("causal"):
            return keys
        return min(keys, max(0, self.call.ranges["q"][0] + stop - self.call.ranges["k"][0]))

    def scores(self, rows: slice, keys: slice) -> Array:
        """Return the scores [b, g, r, q, k] of a block of rows; -inf for keys that causal attention hides."""
        xp, call = self.call.xp, self.call
        factors = self.query[..., rows, :] * call.number("scale"), self.key[..., keys, :].swapaxes(-1, -2)
        scores = xp.matmul(*factors)
        if self.bias is not None:
            scores += self.bias[..., _along(self.bias, 3, rows), _along(self.bias, 4, keys)]
        if call.flag("causal"):
            first = call.ranges["k"][0] - call.ranges["q"][0]
            hidden = xp.arange(keys.start, keys.stop) + first > xp.arange(rows.start, rows.stop)[:, None]
            xp.copyto(scores, -xp.inf, where=hidden)
        return scores


def apart(call: KernelCall, array: Array) -> Array:
    """Return a view of an array of heads [b, h, ...] as [b, g, r, ...]: groups, and the heads of a group."""
    batch, _, *rest = array.shape
    return array.reshape(batch, call.length("g"), call.length("r"), *rest)


def _along(bias: Array, dim: int, part: slice) -> slice:
    return part if bias.shape[dim] > 1 else slice(None)


def attention(call: KernelCall) -> None:
    """Compute values weighted by the softmax of scores, and the log-sum-exp of each query's scores."""
    xp, (query, key, value, *biases) = call.xp, call.inputs
    part = Part.of(call, query, key, *biases)
    for rows, keys in part.blocks():
        weights = part.scores(rows, keys)
        maximum = weights.max(axis=-1, keepdims=True)
        xp.copyto(maximum, 0, where=maximum == -xp.inf)  # a query without keys
        weights -= maximum
        xp.exp(weights, out=weights)
        sums = weights.sum(axis=-1, keepdims=True)
        xp.copyto(sums, 1, where=sums == 0)
        mixed = xp.matmul(weights, value[:, :, None, keys]) / sums
        total = maximum + xp.log(sums)
        call.outputs[0][:, :, rows] = mixed.reshape(*query.shape[:2], *mixed.shape[3:])
        call.outputs[1][:, :, rows] = total.reshape(*query.shape[:2], -1)


@dataclass(frozen=True, slots=True)
class Backward:
    """What backward kernels recompute for a block of rows: probabilities, and the gradient of scores."""

    part: Part
    grad: Array
    value: Array
    inner: Array
    total: Array

    @classmethod
    def of(cls, call: KernelCall) -> Backward:
        """Return it for the operands of a call."""
        grad, query, key, value, *biases, total, inner = call.inputs
        grad, total, inner = (apart(call, array) for array in (grad, total, inner))
        return cls(Part.of(call, query, key, *biases), grad, value[:, :, None], inner[..., None], total[..., None])

    def block(self, rows: slice, keys: slice) -> tuple[Array, Array]:
        """Return the probabilities and the gradient of scores, both [b, g, r, q, k]."""
        xp, probabilities = self.part.call.xp, self.part.scores(rows, keys)
        probabilities -= self.total[..., rows, :]
        xp.exp(probabilities, out=probabilities)
        slopes = xp.matmul(self.grad[..., rows, :], self.value[..., keys, :].swapaxes(-1, -2))
        slopes -= self.inner[..., rows, :]
        slopes *= probabilities
        return probabilities, slopes


def backward_query(call: KernelCall) -> None:
    """Compute the gradient of the queries."""
    backward, (out,) = Backward.of(call), call.outputs
    columns = slice(*call.ranges["e"])
    for rows, keys in backward.part.blocks():
        _, slopes = backward.block(rows, keys)
        gradient = call.xp.matmul(slopes, backward.part.key[..., keys, columns])
        out[:, :, rows] = gradient.reshape(*out.shape[:2], *gradient.shape[3:]) * call.number("scale")


def backward_keys(call: KernelCall) -> None:
    """Compute the gradients of keys and values, summed over the queries."""
    backward, (of_key, of_value) = Backward.of(call), call.outputs
    of_key[...] = of_value[...] = 0
    for rows, keys in backward.part.blocks():
        probabilities, slopes = backward.block(rows, keys)
        for out, weights, queries in ((of_key, slopes, backward.part.query), (of_value, probabilities, backward.grad)):
            out[:, :, keys] += call.xp.matmul(weights.swapaxes(-1, -2), queries[..., rows, :]).sum(axis=2)
    of_key *= call.number("scale")


def backward_bias(call: KernelCall) -> None:
    """Compute the gradient of the bias: that of the scores, summed over the dimensions that the bias lacks."""
    backward, (out,), dims = Backward.of(call), call.outputs, call.integers("dims")
    out[...] = 0
    view = out.transpose(sorted(range(len(dims)), key=dims.__getitem__))
    absent = tuple(dim for dim in range(4) if dim not in dims)
    for rows, keys in backward.part.blocks():
        _, slopes = backward.block(rows, keys)
        batch, groups, share, *rest = slopes.shape
        place = tuple({2: rows, 3: keys}.get(dim, slice(None)) for dim in range(4) if dim in dims)
        view[place] += slopes.reshape(batch, groups * share, *rest).sum(axis=absent)


KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(("attention", "biased_attention"), attention),
    **dict.fromkeys(("attention_backward_query", "biased_attention_backward_query"), backward_query),
    **dict.fromkeys(("attention_backward_keys", "biased_attention_backward_keys"), backward_keys),
    "biased_attention_backward_bias": backward_bias,
}
