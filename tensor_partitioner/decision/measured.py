"""Measured steps: a pace in any unit that trainers print, and what it corrects in predictions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from pathlib import Path
from statistics import mean, pvariance
from typing import NamedTuple

from planner.errors import GraphError, InputError, PlanError
from planner.files import format_of
from planner.graph.facts import sequence_length
from planner.parallel import Parallel
from planner.report.profiles import read_profile
from planner.report.profiles.profile import MOST_OF_A_PROFILE
from planner.report.schema import read_reports
from planner.search.alternatives.labels import experts_of
from simulator.projection.network import Cluster
from simulator.projection.result import Projection
from simulator.projection.stack import Stack
from tensor_partitioner.decision.record import Anchor, PublishedScore, published_scores
from tensor_partitioner.projection import inner_of, project_source
from tensor_partitioner.replicas import Source
from topologies.reading import read_bytes

MEASURED = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:e[+-]?\d+)?)\s*(k? ?)([a-zA-Z/% ]+)")
TERA, KILO = 1e12, 1e3
MOST = 1e18
"""Bound on a measured value, in any unit."""

EXPECTED = "expected a number and s, ms, tok/s, tok/s/GPU, samples/s, TFLOP/s (per GPU) or % MFU, as in 9.8k tok/s/GPU"


def seconds_in(file: Path, step: Projection) -> float:
    """Return the seconds per step in a report of `execute` or in a profile.

    Raises InputError if the report is of another number of workers or another batch.
    """
    if not format_of(read_bytes(file, MOST_OF_A_PROFILE)).startswith("report/"):
        return read_profile(file).seconds
    report = read_reports(file)[-1]
    written, expected = (report.source, report.workers, report.batch), ("executor", step.devices, step.samples)
    if written != expected or report.seconds_per_step is None:
        raise InputError(
            f"{file}: expected a run of {step.devices} workers with a batch of {step.samples}, found another"
        )
    return report.seconds_per_step


def seconds_of(measured: str, step: Projection, tokens: int | None, *, tps_of_device: bool = False) -> float:
    """Return the seconds per step of a measurement: a pace, or a file with a report or a profile.

    "tps" means tokens per second of one device if `tps_of_device`. Raises InputError if the text is not a measurement,
    or if it is faster than the devices' peak.
    """
    file = Path(measured.strip())
    seconds = (
        seconds_in(file, step) if file.is_file() else _typed_s(measured, step, tokens, tps_of_device=tps_of_device)
    )
    if seconds < step.model_operations / step.devices / step.peak_flop_per_s:
        raise InputError(f"--measured: expected at most the peak of {step.devices} devices, found {measured!r}")
    return seconds


def _typed_s(measured: str, step: Projection, tokens: int | None, *, tps_of_device: bool) -> float:
    match = MEASURED.fullmatch(measured.strip())
    if match is None:
        raise InputError(f"--measured: {EXPECTED}, found {measured!r}")
    try:
        value = float(match[1].replace(",", "")) * (KILO if match[2].strip() else 1)
    except ValueError:
        value = 0.0
    unit = re.sub(r"seconds?|sec\b", "s", re.sub(r"tokens?", "tok", match[3].lower().replace(" ", "")))
    unit = "tok/s/gpu" if unit == "tps" and tps_of_device else unit
    per_device = unit.endswith(("/gpu", "/device")) or unit.startswith(("tflop", "%"))
    scale = step.devices if per_device else 1
    flop = step.model_operations
    done: dict[str, float] = {
        "samples/s": step.samples, "tflop/s": flop / TERA, "tflops": flop / TERA, "tflops/s": flop / TERA,
        "%mfu": 100 * flop / step.peak_flop_per_s, "%": 100 * flop / step.peak_flop_per_s,
    }  # fmt: skip
    if tokens is not None:
        done["tok/s"] = tokens
    rate = unit.removesuffix("/gpu").removesuffix("/device")
    is_time = unit in {"s", "ms", "s/step", "s/it"} and not match[2].strip()
    if not 0 < value < MOST or not (is_time or rate in done):
        raise InputError(f"--measured: {EXPECTED}, found {measured!r}")
    return value / (KILO if unit == "ms" else 1) if is_time else done[rate] / (value * scale)


# Anchors: correct predictions by one measured step.
#
# The seconds t of a step depend on how much slower than predicted its kernels, its exchanges and its host are,
# exp(x) for each. Without a measurement x is 0. The prior variance of x is what runs of one model on one machine
# have in common on the scoreboard; each run has an error of its own besides. One measured step gives one equation,
# log t(x) + error = log measured. The most likely x is that of a Kalman filter: the gain of a part is proportional
# to the sensitivity of the step to it, s = d log t / d x at x = 0. Because log t is not linear in x, the gain is
# scaled until the equation holds.


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
        measured_s=measured_s, predicted_s=predicted_s, anchored_s=seconds((kernels, exchanges, host)),
        kernels=exp(kernels), exchanges=exp(exchanges), host=exp(host),
    )  # fmt: skip


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
