"""The papers' alternatives: restrictions of the same space, each solved by the same solver.

Where a restriction cannot be kept at a step, because what it asks for cannot be split there, every candidate of that
step is allowed and the cheapest is taken; of several choices, such as one dimension or another, those count that can
be kept at most steps. Within its restriction each is exact, as far as the limits allow.
"""

from planner.search.alternatives.by_name import named
from planner.search.alternatives.parallelism import (
    data_parallel,
    hybrid,
    hybrid_may_cost_less,
    model_parallel,
)

__all__ = [
    "data_parallel",
    "hybrid",
    "hybrid_may_cost_less",
    "model_parallel",
    "named",
]
