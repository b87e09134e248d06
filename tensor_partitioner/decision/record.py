"""The records of a decision: written as JSON, printed as tables, and read by the page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from math import ceil
from pathlib import Path
from statistics import fmean

import msgspec

from planner.errors import InputError
from planner.files import read_input
from simulator.projection.memory import MemoryLine
from simulator.projection.result import StageLine
from simulator.projection.stack import Stack
from tensor_partitioner.display import Shown

FORMAT = "decision/1"

SEARCHED = {"bytes": "plan of least bytes", "time": "plan of least time without overlap"}
"""Names of searched plans, by objective."""

FAMILIES = {"bytes": "searched plan, least bytes", "time": "searched plan, least time"}
"""Families of searched plans, by objective."""

ALL_ALIKE = ", all devices doing the same work"
"""Suffix of the name of a searched plan that divides nothing."""


class RankedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate with its predicted step.

    `parallel` is the value of `--parallel`; None for a searched plan. `bound_s` is a lower bound on the seconds of its
    branch. `roof_factor` is the ratio of the step to the best time of its kernels. `sent_bytes` are the bytes that a
    device sends in a step, by axis, averaged over devices. `why` says why it loses to the best.
    """

    name: str
    parallel: str | None
    family: str
    seconds_per_step: float
    bound_s: float
    fits: bool
    samples_per_s: float
    tokens_per_s: float | None
    utilisation: float
    needed_bytes: int
    capacity_bytes: float
    margin_bytes: float
    exposed_s: float
    bubble_s: float
    roof_factor: float
    micro_batches: int
    shares: Mapping[str, float]
    memory: tuple[MemoryLine, ...]
    stages: tuple[StageLine, ...]
    sent_bytes: Mapping[str, int] = {}
    why: str = ""

    @property
    def objective(self) -> str | None:
        """What the search of the plan minimized, "bytes" or "time"; None for named parallelism."""
        return next((objective for objective, family in FAMILIES.items() if family == self.family), None)


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model: parameters, samples per step, tokens per sample, operations per step (flop), precision, optimizer.

    `weights` is the dtype of the weights, "" if it equals `dtype` or is unknown; `products` that of products in layers,
    "" if it equals `dtype`.
    """

    name: str
    parameters: int
    batch: int
    sequence: int | None
    layers: int
    operations: float
    dtype: str
    weights: str = ""
    products: str = ""
    optimizer: str = "none"

    @property
    def precision(self) -> str:
        """The precision in words.

        >>> facts = dict(name="", parameters=0, batch=1, sequence=None, layers=0, operations=0.0)
        >>> ModelFacts(**facts, dtype="bfloat16", weights="float32").precision
        'mixed precision (bfloat16 products)'
        """
        if self.products:
            return f"mixed precision ({self.products} products in layers, {self.dtype} elsewhere)"
        return self.dtype if self.weights in ("", self.dtype) else f"mixed precision ({self.dtype} products)"


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine: number of devices, devices per node, and their type, memory and peak rate."""

    name: str
    devices: int
    per_node: int
    device: str
    memory_bytes: float
    peak_flop_per_s: float


class SearchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of candidates: considered, ruled out by bounds, not reached in time, impossible, and priced.

    No candidate that was left out is faster than `lower_bound_s`; `gap` is the best's excess over it, relative to it.
    """

    considered: int
    bounded_away: int
    unfinished: int = 0
    impossible: int
    projected: int
    lower_bound_s: float
    gap: float
    seconds: float


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step and the correction it implies: factors on the seconds of kernels, exchanges and the host.

    `anchored_s` is the corrected prediction of the measured step.
    """

    measured_s: float
    predicted_s: float
    anchored_s: float
    kernels: float
    exchanges: float
    host: float

    def of(self, stack: Stack) -> Stack:
        """Return a stack with the correction applied."""
        return stack.slowed(self.kernels, self.exchanges, self.host)


class Decision(msgspec.Struct, Shown, frozen=True, kw_only=True):
    """A decision: what to do and why.

    Candidates are sorted: those with memory enough for 90% of published runs first, then others that fit, each by
    seconds, then the rest.

    `one_device_s` are the seconds of a step on one device, if that is as fast as all; None otherwise. `band` is the
    range of measured over predicted seconds that holds 90% of published runs of such models. `memory_risk` is the share
    of published runs that exceeded their predicted memory by more than the best candidate leaves free; `memory_margin`
    is the ratio of measured to predicted memory that 90% of published runs stayed within. `anchor` is the correction by
    a measured step; all predictions include it. `engine` is the engine that all candidates are for, if one was given.
    `not_priced` are the settings of a launch file that predictions leave out.
    """

    format: str = FORMAT
    model: ModelFacts
    machine: MachineFacts
    stack: str
    verdict: str
    search: SearchFacts
    candidates: tuple[RankedCandidate, ...]
    commands: tuple[str, ...]
    one_device_s: float | None = None
    band: tuple[float, float] | None = None
    memory_risk: float | None = None
    memory_margin: float = 1.0
    anchor: Anchor | None = None
    engine: str | None = None
    not_priced: tuple[str, ...] = ()

    @property
    def best(self) -> RankedCandidate:
        """The first candidate, which is recommended."""
        return self.candidates[0]

    @property
    def faster(self) -> RankedCandidate | None:
        """The fastest candidate that fits, if it leaves too little memory for 90% of published runs; else None."""
        limit_s = self.best.seconds_per_step
        return next((row for row in self.candidates if row.fits and row.seconds_per_step < limit_s), None)

    def of_families(self) -> tuple[RankedCandidate, ...]:
        """Return the best candidate of each family, in order."""
        return of_families(self.candidates)


def of_families(candidates: Iterable[RankedCandidate]) -> tuple[RankedCandidate, ...]:
    """Return the first candidate of each family, in order."""
    first: dict[str, RankedCandidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.family, candidate)
    return tuple(first.values())


def load_decision(file: Path) -> Decision:
    """Read a decision from a file. Raises InputError if it is not one."""
    try:
        return msgspec.json.decode(read_input(file), type=Decision)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {error}") from error


def best_of(file: Path) -> tuple[list[str], int]:
    """Return the arguments of `export-plan` for a decision's best candidate, and the devices per node.

    Raises InputError if the best is a searched plan, which a decision does not contain.
    """
    decision = load_decision(file)
    try:
        typed = next((words for words in map(shlex.split, decision.commands) if "--parallel" in words), None)
    except ValueError as error:
        raise InputError(f"{file}: commands: {error}") from error
    if typed is None:
        first = decision.commands[0] if decision.commands else "plan MODEL -o plan.json"
        raise InputError(f"{file}: the best is a searched plan, which is not in it: run {first}, then export that file")
    return typed[1 : typed.index("--parallel") + 2], decision.machine.per_node


PATH = Path(__file__).with_name("published.json")
"""The scores that the project's scoreboard of published runs writes."""

COVERAGE = 0.9
"""Share of published runs that lie within a band."""


class PublishedScore(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the predicted step time on one source's runs: predicted over measured seconds, minus one.

    `mean` and `p90` are of the absolute error, `bias` is the mean signed error; `runs` counts the runs that no figure
    was fitted on. `experts`: the models are mixtures of experts. `ratios` are evenly spaced percentiles of measured
    over predicted seconds, from the least to the largest; `within` is the standard deviation of their logarithm among
    runs of one model on one machine, None if no two runs share these. `memory` are percentiles of measured over
    predicted bytes per device.
    """

    source: str
    assumed: tuple[str, ...]
    runs: int
    mean: float
    p90: float
    bias: float
    experts: bool
    ratios: tuple[float, ...]
    within: float | None = None
    memory: tuple[float, ...] = ()


@cache
def published_scores() -> tuple[PublishedScore, ...]:
    """Return the scores of every source that publishes times."""
    return msgspec.json.decode(PATH.read_bytes(), type=tuple[PublishedScore, ...])


def band(scores: tuple[PublishedScore, ...], *, experts: bool) -> tuple[float, float]:
    """Return the range of measured over predicted seconds that holds 90% of published runs.

    Every source has equal weight.

    Mixtures of experts (`experts`) are scored by themselves.
    """
    ratios = sorted(ratio for score in scores if score.experts == experts for ratio in score.ratios)
    left_out = round((1 - COVERAGE) / 2 * (len(ratios) - 1))
    return ratios[left_out], ratios[-1 - left_out]


def memory_risk(scores: tuple[PublishedScore, ...], candidate: RankedCandidate) -> float:
    """Return the share of published runs that exceeded their predicted memory by more than the candidate leaves free.

    Every source that publishes memory has equal weight.
    """
    most = candidate.capacity_bytes / candidate.needed_bytes
    return fmean([fmean(ratio > most for ratio in score.memory) for score in scores if score.memory] or [0.0])


def memory_margin(scores: tuple[PublishedScore, ...]) -> float:
    """Return the ratio of measured to predicted memory that 90% of published runs stayed within.

    Sources have equal weights.
    """
    ratios = sorted(ratio for score in scores for ratio in score.memory)
    return ratios[ceil(COVERAGE * len(ratios)) - 1] if ratios else 1.0
