"""The comparison of k workers with one: the same steps on the same data, in one process."""

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
"""Differences that are always allowed in a graph whose least precise dtype this is, relative to the largest value."""

ROUNDING: Mapping[str, float] = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance of 1 and the next number."""

MARGIN = 16
"""How many times the difference that one sample of rounding errors makes another sample's may be, while it is small."""

MOST = 0.05
"""The greatest difference that counts as equal. Rounding that does more decides the very signs of what is compared, and
another sample's effect is at most twice as large."""


def relative_difference(actual: HostArray, expected: HostArray) -> float:
    """Return max|found - expected| / max|expected|, in double precision; not a number where either is not finite."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    gap = float(np.abs(a - b).max(initial=0.0))
    size = float(np.abs(b).max(initial=0.0))
    return gap / size if gap and size else gap


def tolerance(by_rounding: float, least: float) -> float:
    """Return what a tensor may differ by where one sample of rounding errors changes it by so much."""
    return max(least, min(MARGIN * by_rounding, max(MOST, 2 * by_rounding)))


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor of k workers is from one worker's, and how far rounding may take it."""

    value: float
    tolerance: float

    @property
    def excess(self) -> float:
        """The difference relative to its tolerance; what is not finite is worse than all."""
        return math.inf if math.isnan(self.value) else self.value / self.tolerance

    @property
    def is_undecided(self) -> bool:
        """True if rounding explains a difference that is too large to say anything."""
        return self.excess <= 1 and self.value > MOST


def alone(plan: Plan) -> RankPrograms:
    """Return the programs of one worker that does the work of all."""
    return rank_programs(single_worker(plan), 0, prefetch=0)


def check(trainer: Trainer, data: DataSet, steps: int) -> CheckResult | None:
    """Compare what `steps` steps trained with one worker's training on rank 0 (collective); None elsewhere.

    Compared are the first step's gradients and every updated tensor after the last, relative to its largest value. One
    worker trains twice, the second time with every weight moved by a rounding error before every step: so far may
    rounding take a tensor, all the way where an optimizer divides a gradient that is zero but for rounding by its own
    size. A tensor that it takes further than `MOST` is undecided. Leaves `trainer` as after its first step.
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
    """Return the dtype among a graph's with the largest rounding errors."""
    dtypes = {tensor.dtype for tensor in graph.tensors.values()}
    return next((dtype for dtype in TOLERANCES if dtype in dtypes), "float64")


def _trained_by_all(trainer: Trainer, data: DataSet) -> Iterator[tuple[str, HostArray | None]]:
    """Yield the updated tensors as they are, then the gradients of a first step (collective); None but on rank 0."""
    for name in trainer.graph.updates:
        yield name, trainer.whole(name)
    trainer.reset()
    trainer.load(data, 0)
    for name, tile in trainer.run_keeping(_gradients(trainer)).items():
        yield name, trainer.whole(name, tile)


def _gradients(trainer: Trainer) -> list[str]:
    """Return the stored gradients that updates read; of one stored as partial sums no worker holds a value."""
    graph, layouts, stored = trainer.graph, trainer.programs.plan.layouts, trainer.programs.training.tensors
    updated = set(graph.updates.values())
    read = dict.fromkeys(name for node in graph.nodes if not updated.isdisjoint(node.outputs) for name in node.inputs)
    gradients = (name for name in read if graph.tensors[name].role == "gradient")
    return [name for name in gradients if name in stored and PARTIAL not in layouts[name]]


def _expected(trainer: Trainer, data: DataSet, steps: int) -> dict[str, tuple[HostArray, float]]:
    """Return what one worker finds on all data, in this process, and what rounding changes in it."""
    single = Trainer(
        alone(trainer.programs.plan), single_rank(trainer.cluster.cores), trainer.xp, "p2p", trainer.schedule
    )
    if trainer.weights is not None:
        single.begin_with(trainer.weights)
    return with_rounding(single, data, steps)


def with_rounding(single: Trainer, data: DataSet, steps: int) -> dict[str, tuple[HostArray, float]]:
    """Return what one worker finds, and what rounding changes in it: the loss, the first gradients, what is updated."""
    exact, moved = (trained_alone(single, data, steps, nudge=nudge) for nudge in (False, True))
    return {name: (value, relative_difference(moved[name], value)) for name, value in exact.items()}


def trained_alone(single: Trainer, data: DataSet, steps: int, *, nudge: bool = False) -> dict[str, HostArray]:
    """Train from the start; return the first step's gradients, the updated tensors, and the last loss.

    With `nudge`, every weight is moved by a rounding error before every step.
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
    """Move every weight by up to the distance of two numbers of its size."""
    for tensor in trainer.graph.tensors.values():
        if tensor.role == "weight" and tensor.init is not None:
            errors = ROUNDING[least_precise(trainer.graph)] * generator.uniform(-1, 1, tensor.shape)
            trainer.view(tensor.name)[...] *= trainer.xp.asarray((1 + errors).astype(tensor.dtype))


def _result(differences: Mapping[str, Difference]) -> CheckResult:
    """Name the tensor that differs most, relative to its tolerance; nothing passes where all is undecided."""
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
