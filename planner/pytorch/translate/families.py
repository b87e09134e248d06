"""How PyTorch's operators are written in the catalog's: each module enters its own in the table of converters."""

from planner.pytorch.translate import (  # noqa: F401  # for what they enter
    attention,
    comparing,
    convolutions,
    elementwise,
    indexing,
    losses,
    norms,
    own_gradients,
    recurrent,
    reductions,
    scattering,
    shapes,
)
