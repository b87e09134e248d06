"""PyTorch's fused attention on a GPU, for whole rows and keys: flash attention for 16 bits, else the efficient kernel.

Fused backward kernels read the result only for its inner products with its gradient. Ours get these products instead,
because workers split queries equally. The projection of the result onto its gradient has the same products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
import torch.nn.functional as F  # noqa: N812  # as PyTorch's users know it

from executor.kernels import KernelCall
from executor.torch.computed import NARROW, widened
from executor.torch.tensors import tensors_of

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
