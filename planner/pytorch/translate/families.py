"""Import all families of operators, which register their converters."""

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
