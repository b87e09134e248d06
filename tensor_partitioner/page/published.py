"""How far predictions were off on runs that others published, for a page to show."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

PATH = Path(__file__).with_name("published.json")
"""The scores, as the project's scoreboard of published runs writes them."""


class PublishedScore(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of predicted seconds of a step on one source's runs: predicted over measured, less one.

    `mean` and `p90` are of its size, `bias` is its mean with its sign; `runs` are those that no figure was fitted on.
    """

    source: str
    assumed: tuple[str, ...]
    runs: int
    mean: float
    p90: float
    bias: float


@cache
def published_scores() -> tuple[PublishedScore, ...]:
    """Return the scores of every source that publishes times."""
    return msgspec.json.decode(PATH.read_bytes(), type=tuple[PublishedScore, ...])
