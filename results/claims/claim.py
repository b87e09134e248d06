"""A claim of a paper and what we get for it; figures come from the experiments' data, or are worked out when asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from results.experiment import ROOT, read_data, read_published

HOLDS, OTHER, PART, FAILS = "holds", "holds with another figure", "holds in part", "does not hold"
"""In part: of some of the models, or of a part of the range, that it is said of."""

MISSING = "no experiment yet"
VERDICTS = (HOLDS, OTHER, PART, FAILS, MISSING)

GB = 10**9
MB = 10**6


@dataclass(frozen=True, slots=True)
class Answer:
    """What we get, the verdict on what is said, and why it is so."""

    got: str
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What sentences of a paper, by number, say together, in short, and what we get."""

    paper: str
    numbers: tuple[int, ...]
    says: str
    answer: Callable[[], Answer]


CLAIMS: list[Claim] = []


def claim(
    paper: str, numbers: int | tuple[int, ...], says: str
) -> Callable[[Callable[[], Answer]], Callable[[], Answer]]:
    """Add what a function answers to a claim."""

    def added(answer: Callable[[], Answer]) -> Callable[[], Answer]:
        CLAIMS.append(Claim(paper, (numbers,) if isinstance(numbers, int) else numbers, says, answer))
        return answer

    return added


def answered(entry: Claim) -> Answer:
    """Return the answer; where an experiment's data is not there, that is the answer."""
    try:
        return entry.answer()
    except FileNotFoundError as error:
        return Answer("", MISSING, f"results/{str(error.filename).split('/')[-2]} has no data")


@cache
def data(experiment: str) -> Any:
    """Return an experiment's data."""
    return read_data(ROOT / "results" / experiment)


def published(experiment: str) -> Any:
    """Return what an experiment compares with."""
    return read_published(ROOT / "results" / experiment)


def statement(source: str, account: str, says: str = "") -> tuple[int, int, float]:
    """Return of a theorem how many draws held under an account, of how many, and the worst ratio."""
    rows = [
        row
        for row in data("theorems")["statements"]
        if (row["source"], row["account"]) == (source, account) and row["says"].startswith(says)
    ]
    if len(rows) != 1:
        raise ValueError(f"expected one statement of {source} for {account!r}, found {json.dumps(rows)}")
    return rows[0]["held"], rows[0]["draws"], rows[0]["worst_ratio"]


def of(held: tuple[int, int, float]) -> str:
    """Write how many of how many."""
    return f"{held[0]} of {held[1]}"


def span(values: Iterable[float], form: str = ".2f", unit: str = "") -> str:
    """Write the least and the most of some values."""
    ordered = sorted(values)
    return f"{ordered[0]:{form}}{unit} to {ordered[-1]:{form}}{unit}"


def within(values: Iterable[float], low: float, high: float) -> bool:
    """Whether all values lie between two."""
    return all(low <= value <= high for value in values)
