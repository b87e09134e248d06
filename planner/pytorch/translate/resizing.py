"""Images, sequences and volumes made larger or smaller."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F  # noqa: N812

from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import view
from planner.pytorch.state.contents import Content, value_of
from planner.pytorch.translate.call import TracedCall, converter
from planner.pytorch.translate.elementwise import TORCH
from planner.pytorch.translate.indexing import selected
from planner.pytorch.translate.operations import contract
from planner.pytorch.translate.translation import Translation


@converter("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _repeated(t: Translation, call: TracedCall) -> Value:
    """Repeat every row and column, of an image that grows by a whole factor."""
    x, size = call.first("input", "self"), call.shapes[0][2:]
    scales = call.argument("scale_factors") or [new / old for new, old in zip(size, x.shape[2:], strict=True)]
    times = [new // old for new, old in zip(size, x.shape[2:], strict=True)]
    if list(scales) != times:
        return _interpolated(t, call)
    call.ignore("output_size")
    for dim in reversed(range(2, x.rank)):
        x = x.repeated(dim + 1, times[dim - 2])
    return view(t, x, call.shapes[0])


@converter(
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
)  # fmt: skip
def _interpolated(t: Translation, call: TracedCall) -> Value:
    """Resize each dimension by a matrix, which the resizing of unit vectors is, or by the elements that it chooses."""
    value = call.first("self", "input")
    call.ignore("output_size")
    for dim in range(2, value.rank):
        matrix = _matrix(value.shape[dim], call, dim)
        if "nearest" in call.op:
            value = selected(t, value, dim, value_of(t, Content(matrix.argmax(1))))
        else:
            value = mapped(t, value, dim, matrix)
    return value


def mapped(t: Translation, value: Value, dim: int, matrix: torch.Tensor) -> Value:
    """Multiply a dimension by a matrix [new extent, extent]."""
    constant = value_of(t, Content(matrix.to(TORCH[t.dtype(value)])))
    product = contract(t, value, constant, [(dim, 1)])
    return product.permuted([*range(dim), value.rank - 1, *range(dim, value.rank - 1)])


MODES = {"linear": "bilinear", "trilinear": "bilinear", "nearest_exact": "nearest-exact"}
"""What some interpolations are called for images."""


def _matrix(extent: int, call: TracedCall, dim: int) -> torch.Tensor:
    """Return the matrix [new extent, extent] that resizes one dimension."""
    unit = torch.eye(extent, dtype=torch.float64)[None, None]
    mode = re.sub(r"^_?upsample_|\dd(_aa)?$", "", call.op)
    mode, is_smooth = MODES.get(mode, mode), call.op.endswith("_aa")
    corners = None if mode.startswith("nearest") else call.flag("align_corners")
    scales = call.argument("scale_factors")
    size, scale = (None, (1.0, float(scales[dim - 2]))) if scales else ((extent, call.shapes[0][dim]), None)
    return F.interpolate(unit, size, scale, mode, align_corners=corners, antialias=is_smooth)[0, 0].T
