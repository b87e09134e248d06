"""How PyTorch's operators are written in the catalog's; a name per overload packet ("aten.add.Tensor" is "add")."""

from __future__ import annotations

from collections.abc import Mapping

from planner.pytorch.operators import attention, constants, elementwise, layers, matrix, recurrent, reductions, shapes
from planner.pytorch.operators.call import Converter

CONVERTERS: Mapping[str, Converter] = {
    **elementwise.CONVERTERS,
    **matrix.CONVERTERS,
    **shapes.CONVERTERS,
    **reductions.CONVERTERS,
    **layers.CONVERTERS,
    **attention.CONVERTERS,
    **constants.CONVERTERS,
    **recurrent.CONVERTERS,
}
"""By the operator's name without overload."""
