"""Weighted max-min fairness: how running activities share resources.

An activity uses each of a set of resources with a coefficient, in units per unit of its progress, and may have a cap of
its own. Rates rise together from zero (progressive filling) until a resource is full or a cap is reached; who is
stopped by it keeps that rate, the others rise on. Weights are in the choice of the unit of progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TIE = 1e-12  # relative difference below which two levels are one


@dataclass(frozen=True, slots=True)
class ActivityClass:
    """What activities that are alike have in common: (resource, coefficient) pairs, and the cap on their rate.

    Coefficients are positive, resources distinct; an activity without resources has a cap.
    """

    uses: tuple[tuple[int, float], ...]
    cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse an activity whose rate would have no bound."""
        if not self.uses and self.cap is None:
            raise ValueError("expected a resource or a cap, found neither")
        if any(coefficient <= 0 for _, coefficient in self.uses) or (self.cap is not None and self.cap <= 0):
            raise ValueError(f"expected positive coefficients and cap, found {self.uses} and {self.cap}")


def fair_rates(
    capacities: Sequence[float], classes: Sequence[ActivityClass], counts: Sequence[int]
) -> tuple[float, ...]:
    """Return the rate of one activity of each class where `counts[i]` activities of `classes[i]` run.

    The rates are max-min fair: no resource is used beyond its capacity, and each activity is at its cap or uses a
    full resource on which nobody is faster.
    """
    filling = _Filling(capacities, classes, counts)
    while filling.unfixed:
        filling.stop_next()
    return tuple(filling.rates)


class _Filling:
    """The state of progressive filling: what is left of each resource, and who still rises."""

    def __init__(self, capacities: Sequence[float], classes: Sequence[ActivityClass], counts: Sequence[int]) -> None:
        self.classes = classes
        self.rates = [0.0] * len(classes)
        self.unfixed = set(range(len(classes)))
        self.level = 0.0
        self.capped = sorted(((kind.cap, i) for i, kind in enumerate(classes) if kind.cap is not None), reverse=True)
        self.rising: dict[int, dict[int, float]] = {}  # resource -> rising class -> units used per unit of the rate
        for i, kind in enumerate(classes):
            for resource, coefficient in kind.uses:
                self.rising.setdefault(resource, {})[i] = coefficient * counts[i]
        self.left = {resource: capacities[resource] for resource in self.rising}

    def stop_next(self) -> None:
        """Raise the common rate to the next cap or full resource, and stop whom it stops."""
        full = {resource: self.left[resource] / sum(rising.values()) for resource, rising in self.rising.items()}
        lowest = min(full.values(), default=float("inf"))
        self.level = max(self.level, lowest)  # rounding must not let it fall
        if self._stop_capped():
            return
        limit = lowest + abs(lowest) * TIE
        for resource in [resource for resource, rate in full.items() if rate <= limit]:
            for i in list(self.rising.get(resource, ())):
                self._stop(i, self.level)

    def _stop_capped(self) -> bool:
        """Stop every class whose cap is not above the level: below it, stopping one only leaves more to the others."""
        stopped = False
        while self.capped and self.capped[-1][0] <= self.level:
            cap, i = self.capped.pop()
            if i in self.unfixed:
                self._stop(i, cap)
                stopped = True
        return stopped

    def _stop(self, i: int, rate: float) -> None:
        self.rates[i] = rate
        self.unfixed.remove(i)
        for resource, _ in self.classes[i].uses:
            rising = self.rising[resource]
            self.left[resource] -= rising.pop(i) * rate
            if not rising:
                del self.rising[resource]
