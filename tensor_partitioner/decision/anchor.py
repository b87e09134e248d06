"""Anchors: correct predictions by one measured step.

The seconds t of a step depend on how much slower than predicted its kernels, its exchanges and its host are, exp(x) for
each. Without a measurement x is 0. The prior variance of x is what runs of one model on one machine have in common on
the scoreboard; each run has an error of its own besides. One measured step gives one equation, log t(x) + error = log
measured. The most likely x is that of a Kalman filter: the gain of a part is proportional to the sensitivity of the
step to it, s = d log t / d x at x = 0. Because log t is not linear in x, the gain is scaled until the equation holds.
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
"""Kernels, exchanges, host."""

STEP = 0.05
"""Step in x of the finite differences that estimate the sensitivities."""

MOST_ROUNDS = 60
CLOSE = 1e-9


class Prior(NamedTuple):
    """Variances of log(measured / predicted seconds), split into three independent parts.

    `source` is shared by runs of one source, `model` by runs of one model on one machine; `own` belongs to a single
    run.
    """

    source: float
    model: float
    own: float


def prior(scores: Iterable[PublishedScore], *, experts: bool) -> Prior:
    """Return the variances among published runs: those of mixtures of experts if `experts`, else the others.

    If there are none of that kind, all runs are used. Every source has the same weight. The variance between sources is
    that of their means; runs of a source vary around its mean.
    """
    every = tuple(scores)
    alike = [score for score in every if score.experts == experts] or every
    logs = [[log(ratio) for ratio in score.ratios] for score in alike]
    within = mean(map(pvariance, logs))
    own = mean([score.within**2 for score in alike if score.within is not None] or [within])
    return Prior(mean(mean(ratios) ** 2 for ratios in logs), max(0.0, within - own), own)


def anchor(price: Callable[[Stack], float], stack: Stack, measured_s: float, common: float, own: float) -> Anchor:
    """Return the correction that a measured step of `measured_s` seconds implies.

    `price` returns the predicted seconds of that step under a stack. `common` is the prior variance of each part's x,
    and `own` the variance of the step's own error.
    """
    predicted_s = price(stack)

    def seconds(x: Sequence[float]) -> float:
        return price(stack.slowed(*map(exp, x)))

    units = ([STEP * (part == other) for other in range(PARTS)] for part in range(PARTS))
    slopes = [max(0.0, log(seconds(unit) / predicted_s)) / STEP for unit in units]
    known = common * sum(slope**2 for slope in slopes)

    def left_s(gained: float) -> float:
        """Return what remains of log(measured seconds) after the correction and the step's own error."""
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
    """Return the root of a nearly linear, decreasing function, found by the secant method."""
    before, at = 0.0, of(0.0)
    for _ in range(MOST_ROUNDS):
        value = of(guess)
        if abs(value) < CLOSE or value == at:
            break
        before, at, guess = guess, value, guess - value * (guess - before) / (value - at)
    return guess


def measured_anchor(measured: str, source: Source, batch: int | None, machine: Cluster, stack: Stack) -> Anchor:
    """Return the correction implied by a measurement such as "dp=8,tp=2 = 4.97 s".

    The measured step is one of this model and batch, on as many devices of the machine as the parallelism names. Raises
    InputError if the text cannot be read or does not fit the model.
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
