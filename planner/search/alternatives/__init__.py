"""Alternatives from the papers: restrictions of the same space, solved by the same solver.

If a restriction cannot be satisfied at a step, because nothing can be split as it requires, all candidates of that step
are allowed and the cheapest is taken. If a restriction offers several choices, such as one dimension or another, only
the choices that can be satisfied at the largest number of steps are considered. Each search is exact within its
restriction, as far as the limits allow.
"""

from planner.search.alternatives.by_name import named as named
from planner.search.alternatives.parallelism import (
    data_parallel as data_parallel,
    hybrid as hybrid,
    hybrid_may_cost_less as hybrid_may_cost_less,
    model_parallel as model_parallel,
)
