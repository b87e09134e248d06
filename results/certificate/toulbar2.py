"""The search's problem solved by toulbar2, an exact solver of cost function networks that shares nothing with ours.

Its variables, states and tables are the coarse graph's: no state is dropped, nothing is merged.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from pytoulbar2 import CFN

from planner.search.solver.problem import Problem
from planner.search.space import Space


@dataclass(frozen=True, slots=True)
class Certificate:
    """What toulbar2 proves: the least cost of any plan, a state per variable that has it, and seconds of CPU time."""

    cost: int
    states: tuple[int, ...]
    cpu_seconds: float


def whole_problem(space: Space) -> Problem:
    """Return the problem of choosing any state of every variable of a space."""
    return space.problem([space.candidates(v) for v in range(len(space.coarse.variables))])


def certified(problem: Problem) -> Certificate:
    """Return a choice of least cost.

    toulbar2 counts in units of the greatest common divisor of all costs, in 64 bits. Its choice is counted again here.
    """
    tables = [(scope, problem.tables[number]) for scope, number in problem.terms]
    unit = math.gcd(*(int(np.gcd.reduce(table, axis=None)) for _, table in tables)) or 1
    network = CFN()
    for v, size in enumerate(problem.sizes):
        network.AddVariable(f"v{v}", range(size))
    for scope, table in tables:
        network.AddFunction(list(scope), (table // unit).reshape(-1).tolist())
    started = time.process_time()
    states, least, _ = network.Solve()
    seconds = time.process_time() - started
    cost = problem.constant + unit * round(least)
    if problem.value(states) != cost:
        raise ValueError(f"toulbar2: its choice costs {problem.value(states)}, it says {cost}")
    return Certificate(cost, tuple(states), seconds)
