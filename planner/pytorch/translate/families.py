"""Import all families of operators, which register their converters."""

from planner.pytorch.translate import (  # noqa: F401  # they register converters
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
