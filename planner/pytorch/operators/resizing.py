"""Images made larger or smaller."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from planner.pytorch.axes import Value
from planner.pytorch.contents import Content, value_of
from planner.pytorch.operations import contract
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.shapes import permuted
from planner.pytorch.translation import Translation
from planner.pytorch.views import view


def _repeated(t: Translation, call: TracedCall) -> Value:
    """Repeat every row and column, of an image that grows by a whole factor."""
    x, (rows, columns) = call["input"], call.shapes[0][2:]
    n, channels, height, width = x.shape
    call.need_not("output_size")
    scales = call.get("scale_factors") or (rows / height, columns / width)
    if tuple(scales) != (rows // height, columns // width):
        found: Value = _interpolated("nearest")(t, call)
        return found
    repeated = (*x.dims[:3], (), x.dims[3], ())
    shape = (n, channels, height, rows // height, width, columns // width)
    return view(t, Value(x.tensor, repeated, shape), call.shapes[0])


def _interpolated(mode: str) -> Converter:
    """Resize rows and columns each by a matrix, which the resizing of unit vectors is."""

    def converter(t: Translation, call: TracedCall) -> Value:
        value: Value = call["self" if "self" in call.arguments else "input"]
        if value.rank != 4:
            raise UnsupportedError(f"{call.op} of {value.rank - 2} dimensions: expected images, [n, c, y, x]")
        call.need_not("output_size")
        for dim in (2, 3):
            matrix = _matrix(value.shape[dim], call, mode, dim)
            found = contract(t, value, value_of(t, Content(matrix.to(_torch_dtype(t, value)))), [(dim, 1)])
            order = [0, 1, 3, 2] if dim == 2 else [0, 1, 2, 3]
            value = permuted(found, order)
        return value

    return converter


def _matrix(extent: int, call: TracedCall, mode: str, dim: int) -> torch.Tensor:
    """Return the matrix [new extent, extent] that resizes one dimension."""
    unit = torch.eye(extent, dtype=torch.float64)[None, :, :, None]
    scales = call.get("scale_factors")
    corners = {} if mode == "nearest" else {"align_corners": bool(call["align_corners"])}
    size: dict[str, object] = {"size": (call.shapes[0][dim], 1)}
    if scales:
        size = {"scale_factor": (float(scales[dim - 2]), 1.0)}
    return F.interpolate(unit, mode=mode, **size, **corners)[0, :, :, 0].T  # type: ignore[arg-type]


def _torch_dtype(t: Translation, value: Value) -> torch.dtype:
    found: torch.dtype = getattr(torch, t.dtype(value))
    return found


CONVERTERS: dict[str, Converter] = {
    "upsample_nearest2d": _repeated,
    "upsample_bilinear2d": _interpolated("bilinear"),
    "upsample_bicubic2d": _interpolated("bicubic"),
}
