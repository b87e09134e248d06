"""A set with one of its runs measured first: the others predicted as that run shows kernels, exchanges and the host."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import mean
from typing import Any

from results.scoreboard.predictions import Prediction, predict, projection
from results.scoreboard.runs import Run
from results.scoreboard.sets import MeasuredSet
from simulator.projection.stack import stack_named
from tensor_partitioner.decision.measured import Prior, anchor
from tensor_partitioner.decision.record import Anchor

DRAWS = 5


def anchored(measured: MeasuredSet, part: str, variances: Prior) -> dict[str, Any]:
    """Return the mean error of a set's rows with one of them as an anchor, drawn by seed, in the mean over draws.

    `part` is that which is scored, "all" for all rows. A row that is an anchor is not counted.
    """
    rows = [row for row in predict(measured) if row.error is not None and part in {row.row.part, "all"}]
    drawn = Random(measured.name).sample(rows, min(DRAWS, len(rows)))
    errors = [_errors(row, [other for other in rows if other is not row], variances) for row in drawn]
    counted = [error for errors_of_draw in errors for error in errors_of_draw]
    return {
        "draws": len(drawn),
        "lines": [row.row.line for row in drawn],
        "error_mean": mean(map(abs, counted)) if counted else None,
    }


def _errors(row: Prediction, others: Sequence[Prediction], variances: Prior) -> list[float]:
    """Return the errors of other rows; with one of its own model and machine a run has more in common."""
    common, within, own = variances
    near, far = _anchor(row, common + within, own), _anchor(row, common, within + own)
    return [_error(other, near if _run(other).group == _run(row).group else far) for other in others]


def _anchor(row: Prediction, common: float, own: float) -> Anchor:
    run, way, measured_s = _run(row), row.way, row.measured_s
    assert way is not None
    assert measured_s is not None
    return anchor(
        lambda stack: projection(run, way, stack).seconds, stack_named(run.stack), measured_s, common=common, own=own
    )


def _error(row: Prediction, shown: Anchor) -> float:
    run = _run(row)
    assert row.way is not None
    assert row.measured_s is not None
    return projection(run, row.way, shown.of(stack_named(run.stack))).seconds / row.measured_s - 1


def _run(row: Prediction) -> Run:
    assert row.run is not None
    return row.run
