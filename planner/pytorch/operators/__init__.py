"""How PyTorch's operators are written in the catalog's: each module enters its own in the table of converters."""

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
from planner.pytorch.operators.call import CONVERTERS

__all__ = [
    "CONVERTERS", "attention", "comparing", "convolutions", "elementwise", "indexing", "losses", "matrix", "norms",
    "recurrent", "reductions", "resizing", "shapes",
]  # fmt: skip
