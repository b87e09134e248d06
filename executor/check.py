"""The comparison of k workers with one: the same steps on the same data, in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from executor.backend import asnumpy
from executor.cluster import HostArray, alone
from executor.data import DataSet
from executor.training import Trainer, lowered
from planner.graph.ir import Graph
from planner.plans.plan import single_worker
from planner.report.schema import CheckResult, finite

TOLERANCES: Mapping[str, float] = {"bfloat16": 4e-2, "float16": 5e-3, "float32": 1e-5, "float64": 1e-12}
"""Differences that are always allowed in a graph whose least precise dtype this is, relative to the largest value."""

ROUNDING: Mapping[str, float] = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance of 1 and the next number."""

MARGIN = 16
"""How many times the difference that one sample of rounding errors makes another sample's may be."""


def relative_difference(found: HostArray, expected: HostArray) -> float:
    """Return max|found - expected| / max|expected|, in double precision; not a number where either is not finite."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    gap = float(np.abs(a - b).max(initial=0.0))
    size = float(np.abs(b).max(initial=0.0))
    return gap / size if gap and size else gap


def check(trainer: Trainer, data: DataSet, steps: int) -> CheckResult | None:
    """Train `steps` steps with one worker on rank 0 and compare every updated tensor (collective); None elsewhere.

    One worker does it twice, the second time with every weight moved by a rounding error before every step. What that
    changes in a tensor says how far rounding alone may take it: all the way where a gradient is zero but for rounding
    and the optimizer divides it by its own size.
    """
    first = trainer.cluster.rank == 0
    least = TOLERANCES[least_precise(trainer.graph)]
    single, nudged = (_trained_alone(trainer, data, steps, nudge) if first else None for nudge in (False, True))
    trainer.cluster.meet()
    found: dict[str, float] = {}
    tolerances: dict[str, float] = {}
    for name in trainer.graph.updates:
        whole = trainer.whole(name)
        if whole is not None and single is not None and nudged is not None:
            expected = _stored(single, name)
            by_rounding = relative_difference(_stored(nudged, name), expected)
            found[name] = relative_difference(whole, expected)
            tolerances[name] = max(least, MARGIN * by_rounding)
    return _result(found, tolerances) if first else None


def least_precise(graph: Graph) -> str:
    """Return the dtype among a graph's with the largest rounding errors."""
    found = {tensor.dtype for tensor in graph.tensors.values()}
    return next((dtype for dtype in TOLERANCES if dtype in found), "float64")


def _result(found: Mapping[str, float], tolerances: Mapping[str, float]) -> CheckResult:
    """Name the tensor that differs most, relative to its tolerance; what is not finite is worse than all."""
    excess = {name: value / tolerances[name] for name, value in found.items()}
    excess = {name: math.inf if math.isnan(value) else value for name, value in excess.items()}
    worst = max(excess, key=lambda name: excess[name], default=None)
    failed = sum(value > 1.0 for value in excess.values())
    return CheckResult(
        passed=not failed,
        tensors=len(found),
        failed=failed,
        worst_tensor=worst or "-",
        worst_difference=finite(found[worst]) if worst else 0.0,
        tolerance=tolerances[worst] if worst else 0.0,
    )


def _trained_alone(trainer: Trainer, data: DataSet, steps: int, nudge: bool) -> Trainer:
    """Run the plan of one worker in this process, on all data."""
    programs = lowered(single_worker(trainer.part.plan), prefetch=0, evaluate=False)
    single = Trainer(programs.part(0), alone(trainer.cluster.cores), trainer.xp, "p2p")
    generator = np.random.default_rng(programs.plan.seed)
    for step in range(steps):
        if nudge:
            _nudge(single, generator)
        single.load(data, step)
        single.run()
    return single


def _nudge(trainer: Trainer, generator: np.random.Generator) -> None:
    """Move every weight by up to the distance of two numbers of its size, of the graph's least precise dtype."""
    least = least_precise(trainer.graph)
    for tensor in trainer.graph.tensors.values():
        if tensor.role == "weight" and tensor.init is not None:
            errors = ROUNDING[least] * generator.uniform(-1, 1, tensor.shape)
            trainer.view(tensor.name)[...] *= trainer.xp.asarray((1 + errors).astype(tensor.dtype))


def _stored(trainer: Trainer, name: str) -> HostArray:
    return asnumpy(trainer.view(name))
