"""Compare k workers with one: the same steps on the same data, in one process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from executor.cluster import HostArray, single_rank
from executor.data import DataSet
from executor.training import RankPrograms, Trainer, rank_programs
from planner.graph.ir import Graph
from planner.layout import PARTIAL
from planner.plans.plan import Plan, single_worker
from planner.report.schema import CheckResult, finite

TOLERANCES: Mapping[str, float] = {"bfloat16": 4e-2, "float16": 5e-3, "float32": 3e-5, "float64": 1e-12}
"""Relative differences that are always allowed, by the least precise dtype of the graph."""

ROUNDING: Mapping[str, float] = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance from 1 to the next number."""

MARGIN = 16
"""Allowed ratio between the effects of two samples of rounding errors, while these are small."""

MOST = 0.05
"""The greatest relative difference that counts as equal. Larger rounding effects can change the signs of what is
compared, and another sample's effect is at most twice as large."""


def relative_difference(actual: HostArray, expected: HostArray) -> float:
    """Return max|actual - expected| / max|expected| in double precision; NaN if a value is not finite."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    gap = float(np.abs(a - b).max(initial=0.0))
    size = float(np.abs(b).max(initial=0.0))
    return gap / size if gap and size else gap


def tolerance(by_rounding: float, least: float) -> float:
    """Return the allowed difference of a tensor that one sample of rounding errors changes by `by_rounding`."""
    return max(least, min(MARGIN * by_rounding, max(MOST, 2 * by_rounding)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a tensor between k workers and one, and how much rounding may cause."""

    value: float
    tolerance: float

    @property
    def excess(self) -> float:
        """The difference relative to its tolerance; infinite if it is not finite."""
        return math.inf if math.isnan(self.value) else self.value / self.tolerance

    @property
    def is_undecided(self) -> bool:
        """True if rounding explains a difference that is too large to decide anything."""
        return self.excess <= 1 and self.value > MOST


def alone(plan: Plan) -> RankPrograms:
    """Return the programs of one worker that does all the work."""
    return rank_programs(single_worker(plan), 0, prefetch=0)


def check(trainer: Trainer, data: DataSet, steps: int) -> CheckResult | None:
    """Compare the training of `steps` steps with that of one worker on rank 0 (collective).

    Returns None on other ranks.

    The first step's gradients and all updated tensors after the last step are compared, relative to their largest
    values. One worker trains twice, the second time with every weight perturbed by a rounding error before every step.
    The difference between the two shows how far rounding may move a tensor: all the way if an optimizer normalizes a
    gradient that is zero except for rounding. A tensor that moves further than `MOST` is undecided. Afterwards
    `trainer` is in the state after its first step.
    """
    expected = _expected(trainer, data, steps) if trainer.cluster.rank == 0 else {}
    trainer.cluster.barrier()
    differences: dict[str, Difference] = {}
    least = TOLERANCES[least_precise(trainer.graph)]
    for name, whole in _trained_by_all(trainer, data):
        if name in expected and whole is not None:
            value, by_rounding = expected.pop(name)
            differences[name] = Difference(relative_difference(whole, value), tolerance(by_rounding, least))
    return _result(differences) if trainer.cluster.rank == 0 else None


def least_precise(graph: Graph) -> str:
    """Return the dtype of the graph with the largest rounding errors."""
    dtypes = {tensor.dtype for tensor in graph.tensors.values()}
    return next((dtype for dtype in TOLERANCES if dtype in dtypes), "float64")


def _trained_by_all(trainer: Trainer, data: DataSet) -> Iterator[tuple[str, HostArray | None]]:
    """Yield the updated tensors, then the gradients of a first step (collective). Values are None except on rank 0."""
    for name in trainer.graph.updates:
        yield name, trainer.whole(name)
    trainer.reset()
    trainer.load(data, 0)
    for name, tile in trainer.run_keeping(_gradients(trainer)).items():
        yield name, trainer.whole(name, tile)


def _gradients(trainer: Trainer) -> list[str]:
    """Return the stored gradients that updates read, except partial sums, of which no worker has a value."""
    graph, layouts, stored = trainer.graph, trainer.programs.plan.layouts, trainer.programs.training.tensors
    updated = set(graph.updates.values())
    read = dict.fromkeys(name for node in graph.nodes if not updated.isdisjoint(node.outputs) for name in node.inputs)
    gradients = (name for name in read if graph.tensors[name].role == "gradient")
    return [name for name in gradients if name in stored and PARTIAL not in layouts[name]]


def _expected(trainer: Trainer, data: DataSet, steps: int) -> dict[str, tuple[HostArray, float]]:
    """Return the results of one worker on all data, in this process, and the effect of rounding on each."""
    single = Trainer(
        alone(trainer.programs.plan), single_rank(trainer.cluster.cores), trainer.xp, "p2p", trainer.schedule
    )
    if trainer.weights is not None:
        single.begin_with(trainer.weights)
    return with_rounding(single, data, steps)


def with_rounding(single: Trainer, data: DataSet, steps: int) -> dict[str, tuple[HostArray, float]]:
    """Return one worker's loss, first gradients and updated tensors, with the effect of rounding on each."""
    exact, moved = (trained_alone(single, data, steps, nudge=nudge) for nudge in (False, True))
    return {name: (value, relative_difference(moved[name], value)) for name, value in exact.items()}


def trained_alone(single: Trainer, data: DataSet, steps: int, *, nudge: bool = False) -> dict[str, HostArray]:
    """Train from the start. Return the first step's gradients, the updated tensors, and the last loss.

    With `nudge`, every weight is perturbed by a rounding error before every step.
    """
    generator = np.random.default_rng(single.programs.plan.seed)
    kept: dict[str, HostArray] = {}
    single.reset()
    for step in range(steps):
        if nudge:
            _nudge(single, generator)
        single.load(data, step)
        kept = kept | single.run_keeping(() if step else _gradients(single))
    last = (*single.graph.updates, *(name for metric, name in single.graph.metrics.items() if metric == "loss"))
    return kept | {name: single.host_copy(name) for name in last}


def _nudge(trainer: Trainer, generator: np.random.Generator) -> None:
    """Perturb every weight by up to the distance between neighbouring numbers of its size."""
    for tensor in trainer.graph.tensors.values():
        if tensor.is_parameter:
            errors = ROUNDING[least_precise(trainer.graph)] * generator.uniform(-1, 1, tensor.shape)
            trainer.view(tensor.name)[...] *= trainer.xp.asarray((1 + errors).astype(tensor.dtype))


def _result(differences: Mapping[str, Difference]) -> CheckResult:
    """Return the result, with the tensor that differs most relative to its tolerance.

    If all are undecided, it fails.
    """
    decided = {name: difference for name, difference in differences.items() if not difference.is_undecided}
    worst = max(decided or differences, key=lambda name: differences[name].excess)
    failed = sum(difference.excess > 1 for difference in decided.values())
    return CheckResult(
        passed=bool(decided) and not failed,
        tensors=len(decided),
        failed=failed,
        undecided=len(differences) - len(decided),
        worst_tensor=worst,
        worst_difference=finite(differences[worst].value),
        tolerance=differences[worst].tolerance,
    )
