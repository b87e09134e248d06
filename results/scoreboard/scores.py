"""How good predictions are: errors, bias, the order of plans, what choosing by them costs, memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import mean, median, pvariance
from typing import Any

EQUAL = 1e-9
"""Values that differ by no more than this share of them are equal."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A step of `samples` as measured and as predicted, and the group of runs whose order it has a place in."""

    group: str
    samples: int
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """By how much the prediction is longer than the measured step."""
        return self.predicted_s / self.measured_s - 1


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile, linear between the nearest two."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Kendall's tau-b of measured and predicted values; None where either are all equal."""
    agreeing = measured_ties = predicted_ties = total = 0
    for (a, x), (b, y) in combinations(pairs, 2):
        total += 1
        alike = abs(a - b) <= EQUAL * a, abs(x - y) <= EQUAL * x
        measured_ties += alike[0]
        predicted_ties += alike[1]
        if not any(alike):
            agreeing += 1 if (a < b) == (x < y) else -1
    scale = math.sqrt((total - measured_ties) * (total - predicted_ties))
    return agreeing / scale if scale else None


def regret(pairs: Sequence[tuple[float, float]]) -> float:
    """Return how much slower the run of the least predicted value is than the fastest that was measured.

    Of several runs that are predicted alike any may be chosen: the mean of theirs.
    """
    least = min(predicted for _, predicted in pairs)
    chosen = mean(measured for measured, predicted in pairs if predicted <= least * (1 + EQUAL))
    return chosen / min(measured for measured, _ in pairs) - 1


def ranking(rows: Iterable[Timed]) -> dict[str, Any]:
    """Return Kendall's tau and regret: means over groups of several runs, by seconds a sample."""
    groups: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        groups[row.group].append((row.measured_s / row.samples, row.predicted_s / row.samples))
    several = {name: pairs for name, pairs in groups.items() if len(pairs) > 1}
    taus = [tau for pairs in several.values() if (tau := kendall(pairs)) is not None]
    regrets = [regret(pairs) for pairs in several.values()]
    return {
        "groups": len(several),
        "tau": mean(taus) if taus else None,
        "regret_mean": mean(regrets) if regrets else None,
        "regret_max": max(regrets, default=None),
    }


def times(rows: Sequence[Timed]) -> dict[str, Any]:
    """Return the scores of predicted times: errors of each row, and of the order of rows within groups."""
    if not rows:
        return {"rows": 0}
    signed = [row.error for row in rows]
    sizes = [abs(error) for error in signed]
    return {
        "rows": len(rows),
        "error_mean": mean(sizes),
        "error_median": median(sizes),
        "error_p90": percentile(sizes, 0.9),
        "error_max": max(sizes),
        "bias_mean": mean(signed),
        "bias_median": median(signed),
        **ranking(rows),
        "same_batch": ranking([replace(row, group=f"{row.group}, batch {row.samples}") for row in rows]),
    }


def spread_within(pairs: Iterable[tuple[Any, float]]) -> float | None:
    """Return the standard deviation of values, from (group, value), within groups of several; None without any.

    >>> spread_within([(0, 1.0), (0, 3.0), (1, 7.0)]), spread_within([(0, 1.0), (1, 7.0)])
    (1.4142135623730951, None)
    """
    groups: defaultdict[Any, list[float]] = defaultdict(list)
    for group, value in pairs:
        groups[group].append(value)
    several = [values for values in groups.values() if len(values) > 1]
    squares = sum(len(values) * pvariance(values) for values in several)
    return math.sqrt(squares / sum(len(values) - 1 for values in several)) if several else None


def memory(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return the scores of predicted bytes, from (measured, predicted)."""
    if not pairs:
        return {"rows": 0}
    signed = [predicted / measured - 1 for measured, predicted in pairs]
    sizes = [abs(error) for error in signed]
    return {
        "rows": len(pairs),
        "error_mean": mean(sizes),
        "error_p90": percentile(sizes, 0.9),
        "bias_mean": mean(signed),
    }


def verdicts(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """Return how often it is said rightly whether a run fits, from (it did, it is said to)."""
    ran = [said for did, said in pairs if did]
    not_ran = [said for did, said in pairs if not did]
    return {
        "rows": len(pairs),
        "right": sum(did == said for did, said in pairs),
        "of_those_that_ran": [sum(ran), len(ran)],
        "of_those_out_of_memory": [sum(not said for said in not_ran), len(not_ran)],
    }


def constant_rate(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the factor c for which c times the amount is nearest to the seconds, from (seconds, amount).

    By the mean relative error, so it is the median of seconds over amounts, weighted by amounts over seconds.
    """
    ratios = sorted((seconds / amount, amount / seconds) for seconds, amount in pairs)
    half, weight = sum(weight for _, weight in ratios) / 2, 0.0
    for ratio, part in ratios:
        weight += part
        if weight >= half:
            return ratio
    return ratios[-1][0]


def best_null(amounts: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[str, float]:
    """Return which amount explains the seconds best by one constant, the first of those as good, and the constant."""

    def loss(name: str) -> float:
        factor = constant_rate(amounts[name])
        return round(mean(abs(factor * amount / seconds - 1) for seconds, amount in amounts[name]), 9)

    name = min(amounts, key=loss)
    return name, constant_rate(amounts[name])
