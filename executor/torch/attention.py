"""PyTorch's attention for a worker's share, and its gradients: on a CPU, as products of blocks of rows.

PyTorch's own gradients start at the first row and key and are computed together. A worker's share may start elsewhere,
or need one of them. If a worker computes both in sequence, they are also computed together here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from executor.kernels import KERNELS, Array, Kernel, KernelCall, run
from executor.kernels.attention import apart
from executor.kernels.elementwise import spread
from executor.torch.fused_attention import forward, gradients, kernels_of
from executor.torch.tensors import tensor_of, tensors_of

BLOCK_SCORES = 1 << 19
"""Most scores in a block, unless the rows of one head have more. They fit in a CPU's cache."""

BLOCK_ROWS, CAUSAL_ROWS = 256, 64
"""Rows in a block. Causal attention has fewer, because a block needs no keys after its last row."""


def attention(call: KernelCall) -> None:
    """Compute attention with PyTorch's kernel for CPUs or GPUs; unsupported cases use the kernel on arrays."""
    query, key, value = tensors_of(call)[0][:3]
    if call.xp is not np and (kernels := kernels_of(call, query, key, value)) is not None:
        forward(call, kernels)
        return
    if call.xp is not np or query.shape[-1] != value.shape[-1]:
        run(KERNELS["attention"], call)
        return
    heads = (tensor.repeat_interleave(call.length("r"), 1) for tensor in (key, value))
    from_start = call.ranges["q"][0] == call.ranges["k"][0] == 0
    causal = call.flag("causal") and from_start and len(call.inputs) == 3
    mask = None if causal else _added(call, call.inputs[3:], query.dtype)
    if mask is not None:
        mask = mask.expand(*mask.shape[:2], *(call.length(name) for name in "qk"))
    results = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, *heads, 0.0, causal, attn_mask=mask, scale=call.number("scale")
    )
    for out, result in zip(call.outputs, results, strict=True):
        tensor_of(out).copy_(result)


def _added(call: KernelCall, biases: Sequence[Array], dtype: torch.dtype) -> torch.Tensor | None:
    """Return what is added to scores, with minus infinity at hidden keys: [b, h, q, k], where extents may be 1."""
    total = None
    if call.flag("causal"):
        rows, keys = (torch.arange(*call.ranges[name]) for name in "qk")
        total = torch.zeros(1, 1, len(rows), len(keys), dtype=dtype)
        total.masked_fill_(keys > rows[:, None], -torch.inf)
    for bias in biases:
        added = tensor_of(spread(bias, call.integers("dims"), 4)).to(dtype)
        total = added if total is None else total + added
    return total


Part = tuple[slice, slice]
"""Samples, and groups of heads."""

Block = tuple[slice, slice]
"""Query rows, and the keys that any of them attends to."""


@dataclass(frozen=True, slots=True)
class Share:
    """The operands of gradients: by rows [b, g, r, q, any], by keys [b, g, k, any], and what is added to scores."""

    call: KernelCall
    grad: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    total: torch.Tensor
    inner: torch.Tensor
    added: torch.Tensor | None

    @classmethod
    def of(cls, call: KernelCall) -> Share:
        """Return the operands of a backward call, with 16-bit ones in single precision."""
        grad, query, key, value, *biases, total, inner = call.inputs
        grad, query, total, inner = (_wide(apart(call, array)) for array in (grad, query, total, inner))
        added = _added(call, biases, query.dtype)
        if added is not None:
            added = apart(call, added) if added.shape[1] > 1 else added[:, None]
        return cls(call, grad, query, _wide(key), _wide(value), total[..., None], inner[..., None], added)

    @property
    def rows(self) -> int:
        """Most rows in a block."""
        return CAUSAL_ROWS if self.call.flag("causal") else BLOCK_ROWS

    def parts(self) -> Iterator[Part]:
        """Yield parts of samples and groups, such that blocks do not exceed their number of scores."""
        samples, groups, shared, length = self.query.shape[:4]
        heads = max(1, BLOCK_SCORES // max(1, shared * min(length, self.rows) * self.key.shape[2]))
        several = max(1, heads // max(1, groups))
        for sample in range(0, samples, several):
            for group in range(0, groups, heads):
                yield slice(sample, sample + several), slice(group, group + heads)

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of rows."""
        length, keys = self.query.shape[3], self.key.shape[2]
        ahead = self.call.ranges["q"][0] - self.call.ranges["k"][0]
        for start in range(0, length, self.rows):
            stop = min(start + self.rows, length)
            yield slice(start, stop), slice(0, min(keys, max(0, ahead + stop)) if self.call.flag("causal") else keys)

    def matrices(self, part: Part, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the probabilities of a block and the gradient of its scores: [b and g, r and q, k]."""
        less = self._less(part, block)
        queries, keys = of_rows(self.query, part, block), of_keys(self.key, part, block)
        probabilities = torch.baddbmm(less, queries, keys.mT, alpha=self.call.number("scale")).exp_()
        inner, values = of_rows(self.inner, part, block), of_keys(self.value, part, block)
        slopes = torch.baddbmm(inner, of_rows(self.grad, part, block), values.mT, beta=-1)
        return probabilities, slopes.mul_(probabilities)

    def _less(self, part: Part, block: Block) -> torch.Tensor:
        """Return what is added to scores minus the log-sum-exp. Its extent along keys may be 1."""
        if self.added is None:
            return of_rows(self.total, part, block).neg()
        places = (*part, slice(None), *block)
        added = self.added[tuple(at if n > 1 else slice(None) for at, n in zip(places, self.added.shape, strict=True))]
        return (added - self.total[(*part, slice(None), block[0])]).flatten(2, 3).flatten(0, 1)


def _wide(array: Array) -> torch.Tensor:
    tensor = tensor_of(array)
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def of_rows(tensor: torch.Tensor, part: Part, block: Block) -> torch.Tensor:
    """Return the rows of a block as matrices, one for each sample and group."""
    return tensor[(*part, slice(None), block[0])].flatten(2, 3).flatten(0, 1)


def of_keys(tensor: torch.Tensor, part: Part, block: Block) -> torch.Tensor:
    """Return the keys, or values, of a block as matrices, one for each sample and group."""
    return tensor[(*part, block[1])].flatten(0, 1)


def gradients_by_blocks(call: KernelCall, of_query: Array | None, of_keys_and_values: Sequence[Array]) -> None:
    """Write the gradients of queries (columns `e` of the call), of keys and values, or of both."""
    share, scale = Share.of(call), call.number("scale")
    query = None if of_query is None else tensor_of(apart(call, of_query))
    dtype = share.query.dtype
    nothing = share.query.new_empty(1)
    sums_of = [(tensor_of(out), torch.zeros(out.shape, dtype=dtype)) for out in of_keys_and_values]
    for part in share.parts():
        for block in share.blocks():
            probabilities, slopes = share.matrices(part, block)
            if query is not None:
                rows = query[(*part, slice(None), block[0])]
                keys = of_keys(share.key, part, block)[..., slice(*call.ranges["e"])]
                rows.copy_(torch.baddbmm(nothing, slopes, keys, beta=0, alpha=scale).view(rows.shape))
            factors = (slopes, share.query, scale), (probabilities, share.grad, 1.0)
            for (_, total), (weights, queries, factor) in zip(sums_of, factors, strict=False):
                total[(*part, block[1])].flatten(0, 1).baddbmm_(weights.mT, of_rows(queries, part, block), alpha=factor)
    for out, total in sums_of:
        out.copy_(total)


def write_gradients(call: KernelCall, of_query: Array | None, of_keys_and_values: Sequence[Array]) -> bool:
    """Write the gradients of queries (columns `e` of the call), of keys and values, or of both.

    Return False, and write nothing, if PyTorch has no kernel for the call on a GPU.
    """
    if call.xp is np:
        gradients_by_blocks(call, of_query, of_keys_and_values)
    elif (kernels := kernels_of(call, *tensors_of(call)[0][1:4])) is None:
        return False
    else:
        first, *others = gradients(call, kernels)
        if of_query is not None:
            tensor_of(of_query).copy_(first[..., slice(*call.ranges["e"])])
        for out, gradient in zip(map(tensor_of, of_keys_and_values), others, strict=False):
            out.copy_(gradient)
    return True


def backward_query(call: KernelCall) -> None:
    """Compute the gradient of the queries."""
    if not write_gradients(call, call.outputs[0], ()):
        run(KERNELS["attention_backward_query"], call)


def backward_keys(call: KernelCall) -> None:
    """Compute the gradients of keys and values."""
    if not write_gradients(call, None, call.outputs):
        run(KERNELS["attention_backward_keys"], call)


def backward_at_once(of_query: KernelCall, of_keys: KernelCall) -> None:
    """Compute the gradients of queries, keys and values."""
    if not write_gradients(of_query, of_query.outputs[0], of_keys.outputs):
        run(KERNELS["attention_backward_query"], of_query)
        run(KERNELS["attention_backward_keys"], of_keys)


NAMES = ("attention", "biased_attention")

ATTENTION: dict[str, Kernel] = {
    **dict.fromkeys(NAMES, attention),
    **{f"{name}_backward_query": backward_query for name in NAMES},
    **{f"{name}_backward_keys": backward_keys for name in NAMES},
}
"""Kernels by operator."""

AT_ONCE = {(f"{name}_backward_query", f"{name}_backward_keys"): backward_at_once for name in NAMES}
"""Kernels for two consecutive calls with the same operands, by their operators."""
