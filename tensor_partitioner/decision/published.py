"""How far predictions were off on runs that others published, and the band that follows for a prediction."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

PATH = Path(__file__).with_name("published.json")
"""The scores, as the project's scoreboard of published runs writes them."""

COVERAGE = 0.9
"""Share of published runs that a band holds."""


class PublishedScore(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of predicted seconds of a step on one source's runs: predicted over measured, less one.

    `mean` and `p90` are of its size, `bias` is its mean with its sign; `runs` are those that no figure was fitted on.
    `experts`: its models are mixtures of experts. `ratios` are percentiles of measured over predicted seconds, equally
    spaced from the least to the largest.
    """

    source: str
    assumed: tuple[str, ...]
    runs: int
    mean: float
    p90: float
    bias: float
    experts: bool
    ratios: tuple[float, ...]


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
