"""How PyTorch's operators are written in the catalog's; a name per overload packet ("aten.add.Tensor" is "add")."""

from __future__ import annotations

from collections.abc import Mapping

from planner.pytorch.operators import (
    attention,
    comparing,
    convolutions,
    elementwise,
    indexing,
    losses,
    matrix,
    norms,
    recurrent,
    reductions,
    resizing,
    shapes,
)
from planner.pytorch.operators.call import Converter

CONVERTERS: Mapping[str, Converter] = {
    **elementwise.CONVERTERS,
    **comparing.CONVERTERS,
    **indexing.CONVERTERS,
    **resizing.CONVERTERS,
    **matrix.CONVERTERS,
    **shapes.CONVERTERS,
    **reductions.CONVERTERS,
    **losses.CONVERTERS,
    **norms.CONVERTERS,
    **convolutions.CONVERTERS,
    **attention.CONVERTERS,
    **recurrent.CONVERTERS,
}
"""By the operator's name without overload."""
