"""An anchor: what one measured step tells about how long kernels, exchanges and the host take.

A step's seconds t depend on how many times as long as predicted each part takes, exp(x), where x is 0 as long as
nothing is measured. Of each part x has the variance of what runs of one model on one machine have in common on the
scoreboard, and beside it each run has an error of its own. One measured step gives one equation, log t(x) + error =
log measured. Its most likely x is the Kalman filter's: the gain of a part goes with how much the step depends on it,
s = d log t / d x where nothing is measured. As t is no power of exp(x), that gain is found which fulfils the equation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from statistics import mean, pvariance
from typing import NamedTuple

from planner.errors import GraphError, InputError, PlanError
from planner.graph.facts import sequence_length
from planner.parallel import Parallel
from planner.search.alternatives.axes import experts_of
from simulator.projection.cluster import Cluster
from simulator.projection.stack import Stack
from tensor_partitioner.decision.measured import seconds_of
from tensor_partitioner.decision.record import Anchor, PublishedScore, published_scores
from tensor_partitioner.projection import inner_of, project_source
from tensor_partitioner.replicas import Source

PARTS = 3
"""Kernels, exchanges, the host."""

STEP = 0.05
"""Of x, between the two steps whose ratio says how much a step depends on a part."""

MOST_ROUNDS = 60
CLOSE = 1e-9


class Prior(NamedTuple):
    """Variances of the logarithm of measured over predicted seconds: what runs have in common, and of each beside it.

    Runs of one source have `source` in common, those of one model on one machine `model`, too; `own` is a run's.
    """

    source: float
    model: float
    own: float


def prior(scores: Iterable[PublishedScore], *, experts: bool) -> Prior:
    """Return the variances of published runs, of mixtures of experts by mixtures alone; where there are none, by all.

    Each source weighs as much. Sources differ by their means; about these lie the runs of each.
    """
    every = tuple(scores)
    alike = [score for score in every if score.experts == experts] or every
    logs = [[log(ratio) for ratio in score.ratios] for score in alike]
    within = mean(map(pvariance, logs))
    own = mean([score.within**2 for score in alike if score.within is not None] or [within])
    return Prior(mean(mean(ratios) ** 2 for ratios in logs), max(0.0, within - own), own)


def anchor(price: Callable[[Stack], float], stack: Stack, measured_s: float, common: float, own: float) -> Anchor:
    """Return what a measured step of a stack tells, of which `price` predicts the seconds.

    `common` is the variance of a part's x, and `own` that of the step's own error.
    """
    predicted_s = price(stack)

    def seconds(x: Sequence[float]) -> float:
        return price(stack.slowed(*map(exp, x)))

    units = ([STEP * (part == other) for other in range(PARTS)] for part in range(PARTS))
    slopes = [max(0.0, log(seconds(unit) / predicted_s)) / STEP for unit in units]
    known = common * sum(slope**2 for slope in slopes)

    def left_s(gained: float) -> float:
        """Return the logarithm that is left of the measured seconds, less the step's own error of it."""
        return log(measured_s / seconds([common * slope * gained for slope in slopes])) - own * gained

    gained = _root(left_s, log(measured_s / predicted_s) / (known + own))
    kernels, exchanges, host = (common * slope * gained for slope in slopes)
    return Anchor(
        measured_s=measured_s,
        predicted_s=predicted_s,
        anchored_s=seconds((kernels, exchanges, host)),
        kernels=exp(kernels),
        exchanges=exp(exchanges),
        host=exp(host),
    )


def _root(of: Callable[[float], float], guess: float) -> float:
    """Return where a function is 0 that falls nearly along a line, by the secant method."""
    before, at = 0.0, of(0.0)
    for _ in range(MOST_ROUNDS):
        value = of(guess)
        if abs(value) < CLOSE or value == at:
            break
        before, at, guess = guess, value, guess - value * (guess - before) / (value - at)
    return guess


def measured_anchor(measured: str, source: Source, batch: int | None, machine: Cluster, stack: Stack) -> Anchor:
    """Return what a step tells that was measured, as in "dp=8,tp=2 = 4.97 s"; an InputError for one that says nothing.

    It is a step of the model with this batch, parallel over as many devices of the machine as it says.
    """
    layout, _, pace = measured.rpartition("=")
    if not layout.strip() or batch is None:
        expected = (
            "--batch, the samples of its step," if layout.strip() else "parallelism and a pace, as in dp=8=4.97s,"
        )
        raise InputError(f"--measured: expected {expected} found {measured!r}")
    try:
        parallel = Parallel.read(layout.strip()) or Parallel()
        step = project_source(source, batch, parallel, machine, stack)
        graph = inner_of(source, batch, parallel).replica.graph
        length = sequence_length(graph)
        measured_s = seconds_of(pace, step, None if length is None else length * batch)
    except (PlanError, GraphError) as error:
        raise InputError(f"--measured {measured}: {error}") from error
    of_source, of_model, own = prior(published_scores(), experts=experts_of(graph) > 1)

    def price(stack: Stack) -> float:
        return project_source(source, batch, parallel, machine, stack).seconds

    return anchor(price, stack, measured_s, common=of_source + of_model, own=own)
