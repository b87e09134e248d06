"""Large-neighbourhood search: a choice is improved by solving for all but a few variables, which keep their states.

Free variables may have their most promising live states; others are held each time.
"""

from __future__ import annotations

import time

from planner.search.solver.elimination import best_states, cutset
from planner.search.solver.isomorphism import lockstep_order
from planner.search.solver.known import Known
from planner.search.solver.limits import Limits
from planner.search.solver.model import Model

DEARER = 4.0
"""By how much more reluctantly a variable is held that was held before."""


def improved_by_neighbourhoods(model: Model, known: Known, limits: Limits, deadline: float) -> Known:
    """Return what is known with the best choice improved, until `deadline` in the process's CPU seconds."""
    tuning, dear = limits.tuning, [1.0] * len(model.sizes)
    for count, operations in tuning.neighbourhoods:
        for _ in range(tuning.neighbourhood_rounds):
            if time.process_time() > deadline or known.is_proved:
                return known
            states = list(known.promising_states(count, known.best, model.colours_of_variables))
            for v in cutset([len(of) for of in states], model.scopes, operations, dear):
                dear[v] *= DEARER
                states[v] = (known.best[v],)
            problem = model.exact_problem(states)
            order = lockstep_order(problem.sizes, problem.terms, tuning.neighbourhood_operations, tuning, orders=1)
            if not order.fits_limits(limits.memory_bytes, min(tuning.neighbourhood_operations, limits.operations)):
                break
            before = known.cost
            known = known.with_choice_offered(
                model, [of[s] for of, s in zip(states, best_states(problem, order), strict=True)]
            )
            if before - known.cost < tuning.improved * before:
                break
    return known
