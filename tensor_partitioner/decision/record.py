"""What a decision says, as data: written as JSON, shown as tables, and read by the page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import cache
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
"""The names of plans that a search found, by its objective."""

FAMILIES = {"bytes": "searched plan, least bytes", "time": "searched plan, least time"}
"""Their families."""

ALL_ALIKE = ", all devices doing the same work"
"""What the name of a plan ends in that divides nothing."""


class RankedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A way to train: its name, what `--parallel` takes (None for a searched plan), family, and why it loses.

    `bound_s` is a time that no way of its degrees is below. `roof_factor` is how many times its kernels' best time it
    takes. `sent_bytes` are what a device sends in a step, by axis, in the mean over devices.
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
        """What the search of a plan made least; None of named parallelism."""
        return next((objective for objective, family in FAMILIES.items() if family == self.family), None)


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model: parameters, samples of a step, tokens of a sample, operations of its products, what it computes in.

    `weights` is the dtype of its weights; "" where that is the same, or not said. `optimizer` is its name.
    """

    name: str
    parameters: int
    batch: int
    sequence: int | None
    layers: int
    operations: float
    dtype: str
    weights: str = ""
    optimizer: str = "none"

    @property
    def precision(self) -> str:
        """What products are computed in, in words.

        >>> facts = dict(name="", parameters=0, batch=1, sequence=None, layers=0, operations=0.0)
        >>> ModelFacts(**facts, dtype="bfloat16", weights="float32").precision
        'mixed precision (bfloat16 products)'
        """
        return self.dtype if self.weights in ("", self.dtype) else f"mixed precision ({self.dtype} products)"


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine: devices, how many share a node, their type, memory and peak."""

    name: str
    devices: int
    per_node: int
    device: str
    memory_bytes: float
    peak_flop_per_s: float


class SearchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How the best was found: candidates in all, left out by their bounds, for want of time, impossible, projected.

    `lower_bound_s`: nothing that was left out is faster; the gap is what lies between that and the best.
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
    """A measured step beside the prediction, and how many times as long as predicted parts of others take after it.

    `anchored_s` are the seconds that the measured step is then predicted to take.
    """

    measured_s: float
    predicted_s: float
    anchored_s: float
    kernels: float
    exchanges: float
    host: float

    def of(self, stack: Stack) -> Stack:
        """Return a stack as the measurement shows it."""
        return stack.slowed(self.kernels, self.exchanges, self.host)


class Decision(msgspec.Struct, Shown, frozen=True, kw_only=True):
    """What to do, and why: the candidates best first, those that fit before those that do not.

    `one_device_s` are the seconds of a step on one device alone, where it is as fast as all. `band` is what 90% of
    published runs of such models took at least and at most, over their predictions. `memory_risk` is the share of
    published runs whose memory was above its prediction by more than the best has to spare. `anchor` is what a measured
    step told, after which candidates are predicted. `engine` runs every candidate, where one was asked for.
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
    anchor: Anchor | None = None
    engine: str | None = None

    @property
    def best(self) -> RankedCandidate:
        """The first."""
        return self.candidates[0]

    def of_families(self) -> tuple[RankedCandidate, ...]:
        """The best of every family, in the candidates' order."""
        return of_families(self.candidates)


def of_families(candidates: Iterable[RankedCandidate]) -> tuple[RankedCandidate, ...]:
    """Return the first of every family, in the candidates' order."""
    first: dict[str, RankedCandidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.family, candidate)
    return tuple(first.values())


def load_decision(file: Path) -> Decision:
    """Read a decision; an InputError where it is none."""
    try:
        return msgspec.json.decode(read_input(file), type=Decision)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {error}") from error


def best_of(file: Path) -> tuple[list[str], int]:
    """Return the words that export-plan takes for a decision's best, and devices in a node.

    An InputError where the best is a plan that a search found, which a decision does not hold.
    """
    decision = load_decision(file)
    try:
        typed = next((words for words in map(shlex.split, decision.commands) if "--parallel" in words), None)
    except ValueError as error:
        raise InputError(f"{file}: commands: {error}") from error
    if typed is None:
        first = decision.commands[0] if decision.commands else "plan MODEL -o plan.json"
        raise InputError(f"{file}: the best is a plan that a search found: make it by {first}, and export that file")
    return typed[1 : typed.index("--parallel") + 2], decision.machine.per_node


PATH = Path(__file__).with_name("published.json")
"""The scores, as the project's scoreboard of published runs writes them."""

COVERAGE = 0.9
"""Share of published runs that a band holds."""


class PublishedScore(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of predicted seconds of a step on one source's runs: predicted over measured, less one.

    `mean` and `p90` are of its size, `bias` is its mean with its sign; `runs` are those that no figure was fitted on.
    `experts`: its models are mixtures of experts. `ratios` are percentiles of measured over predicted seconds, equally
    spaced from the least to the largest; `within` is the standard deviation of their logarithm among runs of one model
    on one machine, None where there are no two. `memory` are percentiles of measured over predicted bytes of a device.
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
    """Return what 90% of published runs took at least and at most, over their predictions; each source weighs as much.

    Runs of mixtures of experts stand for mixtures alone, and others for others.
    """
    ratios = sorted(ratio for score in scores if score.experts == experts for ratio in score.ratios)
    left_out = round((1 - COVERAGE) / 2 * (len(ratios) - 1))
    return ratios[left_out], ratios[-1 - left_out]


def memory_risk(scores: tuple[PublishedScore, ...], candidate: RankedCandidate) -> float:
    """Return the share of published runs whose memory was above its prediction by more than a candidate has to spare.

    Each source that publishes memory weighs as much.
    """
    most = candidate.capacity_bytes / candidate.needed_bytes
    return fmean([fmean(ratio > most for ratio in score.memory) for score in scores if score.memory] or [0.0])
