"""Import all families of operators, which register their converters."""

from planner.pytorch.translate import (  # noqa: F401  # they register converters
    attention,
    convolutions,
    elementwise,
    indexing,
    losses,
    norms,
    recurrent,
    reductions,
    scattering,
    shapes,
)
