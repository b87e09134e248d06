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
        self.counts = counts
        self.rates = [0.0] * len(classes)
        self.unfixed = set(range(len(classes)))
        self.capped = sorted(((kind.cap, i) for i, kind in enumerate(classes) if kind.cap is not None), reverse=True)
        self.users: dict[int, list[int]] = {}  # rising and stopped classes of each resource
        self.load: dict[int, float] = {}  # units that rising activities use per unit of the common rate
        for i, kind in enumerate(classes):
            for resource, coefficient in kind.uses:
                self.load[resource] = self.load.get(resource, 0.0) + coefficient * counts[i]
                self.users.setdefault(resource, []).append(i)
        self.rising = {resource: len(users) for resource, users in self.users.items()}
        self.left = {resource: capacities[resource] for resource in self.load}

    def stop_next(self) -> None:
        """Raise the common rate to the next cap or full resource, and stop whom it stops."""
        left, load = self.left, self.load
        full = {resource: left[resource] / load[resource] for resource in left}
        level = min(full.values(), default=float("inf"))
        if self._stop_capped(level):
            return
        limit = level * (1 + TIE)
        for resource in [resource for resource, rate in full.items() if rate <= limit]:
            for i in self.users[resource]:
                if i in self.unfixed:
                    self._stop(i, level)

    def _stop_capped(self, level: float) -> bool:
        """Stop every class whose cap is not above `level`: below it, stopping one only leaves more to the others."""
        stopped = False
        while self.capped and self.capped[-1][0] <= level:
            cap, i = self.capped.pop()
            if i in self.unfixed:
                self._stop(i, cap)
                stopped = True
        return stopped

    def _stop(self, i: int, rate: float) -> None:
        self.rates[i] = rate
        self.unfixed.remove(i)
        for resource, coefficient in self.classes[i].uses:
            self.rising[resource] -= 1
            if self.rising[resource]:
                amount = coefficient * self.counts[i]
                self.load[resource] -= amount
                self.left[resource] -= amount * rate
            else:
                self.left.pop(resource, None)
