"""PyTorch's attention for a worker's share, and its gradients: on a CPU, as products of blocks of rows.

PyTorch's own gradients start at the first row and key and are computed together. A worker's share may start elsewhere,
or need one of them. If a worker computes both in sequence, they are also computed together here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as PyTorch's users know it

from executor.kernels import KERNELS, Array, Kernel, KernelCall, run
from executor.kernels.attention import apart
from executor.kernels.call import spread
from executor.torch.tensors import NARROW, tensor_of, tensors_of, widened

# PyTorch's fused attention on a GPU, for whole rows and keys: flash attention for 16 bits, else the efficient
# kernel.
#
# Fused backward kernels read the result only for its inner products with its gradient. Ours get these products
# instead, because workers split queries equally. The projection of the result onto its gradient has the same
# products.


aten = torch.ops.aten

Tensors = tuple[torch.Tensor, ...]

LSE_ROWS = 32
"""The efficient kernel needs rows of log-sum-exp in multiples of this number."""

FLASH_WIDTHS = range(8, 257, 8)
"""Head widths that flash attention supports."""

ROW_BYTES = 16
"""The bytes of a head must be a multiple of this, for either kernel."""

NARROW_FROM = (8, 0)
"""The first compute capability with both kernels for both 16-bit dtypes."""

LEAST, HALF_LEAST = 2.0**-60, 2.0**-14
"""Replaces the elements of a gradient row that is zero. Its effect on other results is at most this large."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Queries [b, h, q, c], keys [b, h, k, c] and values [b, h, k, e] of fused attention, and its settings."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    causal: bool
    scale: float

    @property
    def tensors(self) -> Tensors:
        """Queries, keys, values."""
        return self.query, self.key, self.value


@dataclass(frozen=True, slots=True)
class Fused:
    """A pair of PyTorch kernels.

    `forward` returns the result and the log-sum-exp. `backward` takes the result's gradient followed by both, and
    returns the gradients of queries, keys and values.
    """

    forward: Callable[[Operands], Tensors]
    backward: Callable[[Operands, torch.Tensor, torch.Tensor, torch.Tensor], Tensors]


def _flash(x: Operands) -> Tensors:
    return aten._scaled_dot_product_flash_attention(*x.tensors, 0.0, x.causal, scale=x.scale)[:2]  # type: ignore[no-any-return]


def _flash_backward(x: Operands, grad: torch.Tensor, result: torch.Tensor, total: torch.Tensor) -> Tensors:
    random = torch.zeros((), dtype=torch.int64, device=grad.device)
    lengths = x.query.shape[2], x.key.shape[2]
    settings = None, None, *lengths, 0.0, x.causal, random, random  # a tensor of ends would mean variable lengths
    gradients: Tensors = aten._scaled_dot_product_flash_attention_backward(
        grad, *x.tensors, result, total.contiguous(), *settings, scale=x.scale
    )
    return gradients


def _efficient(x: Operands) -> Tensors:
    result, total, *_ = aten._scaled_dot_product_efficient_attention(
        *x.tensors, None, True, 0.0, x.causal, scale=x.scale
    )
    return result, total[:, :, : x.query.shape[2]]


def _efficient_backward(x: Operands, grad: torch.Tensor, result: torch.Tensor, total: torch.Tensor) -> Tensors:
    padded = F.pad(total, (0, -total.shape[2] % LSE_ROWS), value=inf)
    random = torch.zeros((), dtype=torch.int64, device=grad.device)
    settings = None, result, padded, random, random, 0.0, (True, True, True, False), x.causal
    gradients: Tensors = aten._scaled_dot_product_efficient_attention_backward(
        grad, *x.tensors, *settings, scale=x.scale
    )
    return gradients[:3]


def _host(x: Operands) -> Tensors:
    return aten._scaled_dot_product_flash_attention_for_cpu(*x.tensors, 0.0, x.causal, scale=x.scale)  # type: ignore[no-any-return]


def _host_backward(x: Operands, grad: torch.Tensor, result: torch.Tensor, total: torch.Tensor) -> Tensors:
    gradients: Tensors = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, *x.tensors, result, total, 0.0, x.causal, scale=x.scale
    )
    return gradients


FLASH, EFFICIENT, HOST = (
    Fused(_flash, _flash_backward),
    Fused(_efficient, _efficient_backward),
    Fused(_host, _host_backward),
)


def kernels_for(query: torch.Tensor) -> Fused | None:
    """Return the kernels for queries of this device, dtype and width; None if PyTorch has none."""
    if query.device.type == "cpu":
        return HOST
    is_narrow, width = query.dtype in NARROW, query.shape[-1]
    is_old = query.device.type == "cuda" and torch.cuda.get_device_capability(query.device) < NARROW_FROM
    if width * query.itemsize % ROW_BYTES or (is_old if is_narrow else query.dtype != torch.float32):
        return None
    return FLASH if is_narrow and width in FLASH_WIDTHS else EFFICIENT


def kernels_of(call: KernelCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Fused | None:
    """Return the kernels for a call of attention or its gradients; None if PyTorch cannot fuse it.

    It can if there is no bias, values are as wide as queries, all have one dtype, and all queries and keys are local;
    causal attention also needs equal numbers of both.
    """
    lengths = call.length("q"), call.length("k")
    from_start = call.ranges["q"][0] == call.ranges["k"][0] == 0
    is_square = lengths[0] == lengths[1] or not call.flag("causal")
    are_alike = query.shape[-1] == value.shape[-1] and query.dtype == key.dtype == value.dtype
    is_whole = "dims" not in call.attributes and from_start and all(array.size for array in call.inputs)
    return kernels_for(query) if is_square and are_alike and is_whole else None


def forward(call: KernelCall, kernels: Fused) -> None:
    """Write the result of attention and its log-sum-exp."""
    (query, key, value), outs = tensors_of(call)
    x = _operands(call, query, key, value)
    for out, result in zip(outs, kernels.forward(x), strict=True):
        out.copy_(result)


def gradients(call: KernelCall, kernels: Fused) -> Tensors:
    """Return the gradients of queries, keys and values: [b, h, q, c], [b, g, k, c] and [b, g, k, e]."""
    grad, query, key, value, total, inner = tensors_of(call)[0]
    x = _operands(call, query, key, value)
    grad, result = projected(grad, inner)
    of_query, *shared = kernels.backward(x, grad, result, widened(total))
    heads = call.length("r")
    if heads > 1:
        shared = [tensor.reshape(len(tensor), -1, heads, *tensor.shape[2:]).sum(2) for tensor in shared]
    return of_query, *shared


def projected(grad: torch.Tensor, inner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a gradient [..., e], and a result whose inner products with it are `inner` [...].

    A row of zeros becomes tiny values, because its log-sum-exp may have a gradient.
    """
    inner = widened(inner).unsqueeze(-1)
    squares = torch.linalg.vector_norm(grad, dim=-1, keepdim=True, dtype=inner.dtype).square_()
    is_zero, least = squares == 0, LEAST
    if grad.dtype == torch.float16:  # tiny float16 values are not so small: avoid them
        is_zero, least = is_zero & (inner != 0), HALF_LEAST
    squares.masked_fill_(is_zero, grad.shape[-1] * least**2)
    grad = grad.masked_fill(is_zero, least)
    if grad.dtype == torch.float16:
        squares.clamp_(min=torch.finfo(squares.dtype).tiny)
    return grad, torch.mul(grad, inner.div(squares), out=torch.empty_like(grad))


def _operands(call: KernelCall, query: torch.Tensor, *shared: torch.Tensor) -> Operands:
    heads = call.length("r")
    key, value = (tensor.repeat_interleave(heads, 1) if heads > 1 else tensor for tensor in shared)
    return Operands(query, key, value, call.flag("causal"), call.number("scale"))


# PyTorch's attention for a worker's share, and its gradients.


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
