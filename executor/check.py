"""The comparison of k workers with one: the same steps on the same data, in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from executor.cluster import HostArray, alone
from executor.data import DataSet
from executor.training import Trainer, lowered
from planner.plans.plan import single_worker
from planner.report.schema import CheckResult, finite

TOLERANCES: Mapping[str, float] = {"float32": 1e-5, "float64": 1e-12}


def difference(found: HostArray, expected: HostArray) -> float:
    """Return max|found - expected| / max|expected|, in double precision; not a number where either is not finite."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    gap = float(np.abs(a - b).max(initial=0.0))
    size = float(np.abs(b).max(initial=0.0))
    return gap / size if gap and size else gap


def check(trainer: Trainer, data: DataSet, steps: int) -> CheckResult | None:
    """Train `steps` steps with one worker on rank 0 and compare every updated tensor (collective); None elsewhere."""
    cluster, graph = trainer.cluster, trainer.graph
    single = _trained_alone(trainer, data, steps) if cluster.rank == 0 else None
    cluster.meet()
    found = {name: _compared(trainer, single, name) for name in graph.updates}
    if cluster.rank != 0:
        return None
    # Relative to its tolerance, the worst tensor is the one nearest to failing; what is not finite is worse than all.
    excess = {name: value / _tolerance(trainer, name) for name, value in found.items()}
    worst = max(excess, key=lambda name: math.inf if math.isnan(excess[name]) else excess[name], default=None)
    if worst is None:
        return CheckResult(passed=True, tensors=0, worst_tensor="-", worst_difference=0.0, tolerance=0.0)
    return CheckResult(
        passed=excess[worst] <= 1.0,
        tensors=len(found),
        worst_tensor=worst,
        worst_difference=finite(found[worst]),
        tolerance=_tolerance(trainer, worst),
    )


def _tolerance(trainer: Trainer, name: str) -> float:
    return TOLERANCES[trainer.graph.tensors[name].dtype]


def _trained_alone(trainer: Trainer, data: DataSet, steps: int) -> Trainer:
    """Run the plan of one worker in this process, on all data."""
    plan = single_worker(trainer.programs.plan)
    programs = lowered(plan, prefetch=0, transport="p2p", evaluate=False)
    single = Trainer(programs, alone(trainer.cluster.cores), trainer.xp, "p2p")
    for step in range(steps):
        single.load(data, step)
        single.run()
    return single


def _compared(trainer: Trainer, single: Trainer | None, name: str) -> float:
    whole = trainer.whole(name)
    expected = None if single is None else single.whole(name)
    return 0.0 if whole is None or expected is None else difference(whole, expected)
