"""Products in formats that no tensor of a graph has, for calibration."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.kernels.call import MakeProduct
from executor.torch.tensors import tensor_of
from executor.values import Array

FLOAT8_MULTIPLE = 16
FLOAT8_FROM = (8, 9)
"""What extents of float8 products are multiples of, and the first compute capability that has them."""


def tf32(a: Array, b: Array) -> Callable[[], None] | None:
    """Return the product of matrices rounded to TF32; None beside a GPU."""
    x, y = tensor_of(a), tensor_of(b)
    if x.device.type != "cuda":
        return None
    out, settings = x.new_empty(x.shape[0], y.shape[1]), torch.backends.cuda.matmul

    def action() -> None:
        allowed = settings.allow_tf32
        settings.allow_tf32 = True
        torch.mm(x, y, out=out)
        settings.allow_tf32 = allowed

    return action


def float8(a: Array, b: Array) -> Callable[[], None] | None:
    """Return the product of matrices in float8 (e4m3), a result in bfloat16; None for other extents or older GPUs."""
    x, y = tensor_of(a), tensor_of(b)
    is_old = x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) < FLOAT8_FROM
    if is_old or any(extent % FLOAT8_MULTIPLE for extent in (*x.shape, *y.shape)):
        return None
    rows, columns = x.to(torch.float8_e4m3fn), y.t().contiguous().to(torch.float8_e4m3fn).t()
    unit = torch.ones((), device=x.device)

    def action() -> None:
        torch._scaled_mm(rows, columns, unit, unit, out_dtype=torch.bfloat16)

    return action


PRODUCTS: dict[str, MakeProduct] = {"tf32": tf32, "float8": float8}
"""By format."""
