"""Attention in blocks of query rows, so only a few rows of its matrix exist at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from executor.kernels.call import Array, Kernel, KernelCall, spread
from executor.kernels.selection import segment_sums
from tdl.operator import named

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


# Rotary embeddings, and tokens on their way to experts and back.


def rotary(call: KernelCall) -> None:
    """Rotate pairs of elements by their angles."""
    (x, cos, sin), xp, half = call.inputs, call.xp, call.integer("half")
    columns = xp.arange(*call.ranges["j"])
    low = columns < half
    partner = xp.where(low, columns + half, columns - half)
    own, turned = (x[..., places - call.origins[0][3]] for places in (columns, partner))
    turned *= sin[:, (partner if call.flag("inverse") else columns) - call.origins[2][1]]
    turned *= xp.where(low ^ call.flag("inverse"), -1, 1).astype(sin.dtype)
    call.xp.add(own * cos, turned, out=call.outputs[0])


def expert_slots(call: KernelCall) -> None:
    """Number the slots that choices get, with `capacity` slots per expert."""
    (indices,), xp, capacity = call.inputs, call.xp, call.integer("capacity")
    chosen = indices.reshape(len(indices), -1)
    sample = xp.arange(len(indices))[:, None]
    order = xp.argsort(chosen, axis=1, kind="stable")
    ordered = (xp.take_along_axis(chosen, order, axis=1) + (sample << 32)).reshape(-1)  # ascending over all samples
    place = xp.empty_like(chosen)
    places = xp.arange(ordered.size) - xp.searchsorted(ordered, ordered)
    place[sample, order] = places.reshape(chosen.shape).astype(place.dtype)
    slots = xp.where(place < capacity, chosen * capacity + place, -1).reshape(indices.shape)
    part = tuple(slice(*call.ranges[name]) for name in "sk")
    call.xp.copyto(call.outputs[0], slots[:, *part], casting="unsafe")


def _local(call: KernelCall) -> tuple[Array, Array]:
    """Return which slots lie in this run's range, and their numbers in that range, over all samples."""
    slots, capacity = call.inputs[1], call.integer("capacity")
    (first_expert, last_expert), (first_place, last_place) = call.ranges["e"], call.ranges["c"]
    expert, place = slots // capacity, slots % capacity
    inside = (expert >= first_expert) & (expert < last_expert) & (place >= first_place) & (place < last_place)
    inside &= slots >= 0
    sample = call.xp.arange(len(slots))[:, None, None]
    number = (sample * (last_expert - first_expert) + expert - first_expert) * (last_place - first_place)
    return inside, (number + place - first_place) * inside


def dispatch(call: KernelCall) -> None:
    """Sum the tokens of every slot."""
    (x, _), (out,) = call.inputs, call.outputs
    inside, numbers = _local(call)
    sums = call.xp.empty((out.size // max(1, out.shape[-1]), out.shape[-1]), out.dtype)
    segment_sums(call.xp, call.xp.where(inside, numbers, -1), x, sums)
    out[...] = sums.reshape(out.shape)


def collect(call: KernelCall) -> None:
    """Fetch every token from its slot."""
    (x, _), (out,) = call.inputs, call.outputs
    inside, numbers = _local(call)
    tokens = x.reshape(-1, x.shape[-1])[numbers]
    call.xp.copyto(out, call.xp.where(inside[..., None], tokens, 0))


KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(("attention", "biased_attention"), attention),
    **dict.fromkeys(("attention_backward_query", "biased_attention_backward_query"), backward_query),
    **dict.fromkeys(("attention_backward_keys", "biased_attention_backward_keys"), backward_keys),
    "biased_attention_backward_bias": backward_bias,
    **named(rotary, expert_slots, dispatch, collect),
}
