"""Images made larger or smaller."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from planner.pytorch.axes import Value
from planner.pytorch.contents import Content, value_of
from planner.pytorch.operations import contract
from planner.pytorch.operators.call import TracedCall, converter, refuse_if
from planner.pytorch.operators.elementwise import TORCH
from planner.pytorch.translation import Translation
from planner.pytorch.views import view


@converter("upsample_nearest2d")
def _repeated(t: Translation, call: TracedCall) -> Value:
    """Repeat every row and column, of an image that grows by a whole factor."""
    x, (rows, columns) = call.first("input", "self"), call.shapes[0][2:]
    height, width = x.shape[2:]
    scales = call.argument("scale_factors") or (rows / height, columns / width)
    if tuple(scales) != (rows // height, columns // width):
        return _interpolated(t, call)
    call.ignore("output_size")
    return view(t, x.repeated(4, columns // width).repeated(3, rows // height), call.shapes[0])


@converter("upsample_bilinear2d", "upsample_bicubic2d")
def _interpolated(t: Translation, call: TracedCall) -> Value:
    """Resize rows and columns each by a matrix, which the resizing of unit vectors is."""
    value = call.first("self", "input")
    refuse_if(value.rank != 4, f"{call.op} of {value.rank - 2} dimensions: expected images, [n, c, y, x]")
    call.ignore("output_size")
    for dim, order in ((2, (0, 1, 3, 2)), (3, (0, 1, 2, 3))):
        matrix = value_of(t, Content(_matrix(value.shape[dim], call, dim).to(TORCH[t.dtype(value)])))
        value = contract(t, value, matrix, [(dim, 1)]).permuted(order)
    return value


def _matrix(extent: int, call: TracedCall, dim: int) -> torch.Tensor:
    """Return the matrix [new extent, extent] that resizes one dimension."""
    unit = torch.eye(extent, dtype=torch.float64)[None, :, :, None]
    mode = call.op.removeprefix("upsample_").removesuffix("2d")
    corners = None if mode == "nearest" else call.flag("align_corners")
    if scales := call.argument("scale_factors"):
        resized = F.interpolate(unit, scale_factor=(float(scales[dim - 2]), 1.0), mode=mode, align_corners=corners)
    else:
        resized = F.interpolate(unit, (call.shapes[0][dim], 1), mode=mode, align_corners=corners)
    return resized[0, :, :, 0].T
