"""Weighted max-min fairness: how concurrent activities share resources.

An activity uses each of its resources with a coefficient, in units per unit of progress, and may have a cap on its
rate. All rates rise together from zero (progressive filling) until a resource is full or a cap is reached. The
activities that this stops keep their rate, and the others rise further. Weights are expressed by the unit of progress.

Sets of classes are bits of an integer, so stopping many costs as much as stopping one. The result of filling is the
level at which each resource became full: the rate of a class is the least of its cap and of the levels of its
resources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Levels = NDArray[np.float64]

TIE = 1e-12  # relative difference below which levels count as equal


@dataclass(frozen=True, slots=True)
class ActivityClass:
    """The common properties of equal activities: (resource, coefficient) pairs, and the cap on their rate.

    Coefficients are positive and resources distinct. An activity without resources has a cap.
    """

    uses: tuple[tuple[int, float], ...]
    cap: float | None = None

    def __post_init__(self) -> None:
        """Raise a ValueError for an activity whose rate would be unbounded."""
        if not self.uses and self.cap is None:
            raise ValueError("expected a resource or a cap, found neither")
        if any(coefficient <= 0 for _, coefficient in self.uses) or (self.cap is not None and self.cap <= 0):
            raise ValueError(f"expected positive coefficients and cap, found {self.uses} and {self.cap}")


def rate(kind: ActivityClass, levels: Sequence[float] | Levels) -> float:
    """Return the rate of a class, given the level at which each resource is full."""
    return min([math.inf if kind.cap is None else kind.cap, *(levels[resource] for resource, _ in kind.uses)])


class Solver:
    """Computes the levels for sets of classes. A class has one activity, plus 2**n if it is in the set `more[n]`."""

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = list(capacities)
        self._classes: list[ActivityClass] = []
        self._fastest: list[float] = []  # per class: the rate of a single activity
        self._plain: list[dict[float, int]] = [{} for _ in capacities]  # resource -> coefficient -> uncapped classes
        self._fastest_plain = [0.0] * len(self._capacities)
        self._capped = 0

    def add(self, kind: ActivityClass) -> int:
        """Add a class and return its number, which is also its bit in sets."""
        number = len(self._classes)
        self._classes.append(kind)
        fastest = rate(kind, [math.inf] * len(self._capacities))
        fastest = min([fastest, *(self._capacities[resource] / units for resource, units in kind.uses)])
        self._fastest.append(fastest)
        if kind.cap is not None:
            self._capped |= 1 << number
            return number
        for resource, units in kind.uses:
            self._plain[resource][units] = self._plain[resource].get(units, 0) | 1 << number
            self._fastest_plain[resource] = max(self._fastest_plain[resource], fastest)
        return number

    def alone(self, number: int) -> float:
        """Return the rate of an activity of a class if no other runs."""
        return self._fastest[number]

    def levels(self, running: int, more: Sequence[int] = ()) -> Levels:
        """Return the level of each resource while these classes run, infinite if it is not full; and infinity."""
        groups: dict[int, list[tuple[float, int]]] = {}  # resource -> (units per unit of rate, set of classes)
        full: dict[int, float] = {}  # resource -> level at which it becomes full
        for resource, capacity in enumerate(self._capacities):
            users = self._users(resource, running, more)
            if self._most(resource, users) >= capacity * (1 - TIE):
                groups[resource] = users
                full[resource] = capacity / sum(weight * who.bit_count() for weight, who in users)
        caps: dict[float, int] = {}
        for number in bits(running & self._capped):
            cap = self._classes[number].cap or math.inf
            caps[cap] = caps.get(cap, 0) | 1 << number
        return self._fill(running, groups, full, sorted(caps.items()))

    def _users(self, resource: int, running: int, more: Sequence[int]) -> list[tuple[float, int]]:
        """Return the classes that use a resource, with their units per unit of rate."""
        sets = [(1, running), *((2**place, who) for place, who in enumerate(more) if who)]
        users = [
            (units * count, who & among)
            for count, among in sets
            for units, who in self._plain[resource].items()
            if who & among
        ]
        for number in bits(running & self._capped):
            for used, units in self._classes[number].uses:
                if used == resource:
                    users.append((units * _count(number, running, more), 1 << number))
        return users

    def _most(self, resource: int, users: Sequence[tuple[float, int]]) -> float:
        """Return an upper bound on the use of a resource."""
        return sum(
            units * who.bit_count() * self._fastest[who.bit_length() - 1]
            if who & self._capped
            else units * who.bit_count() * self._fastest_plain[resource]
            for units, who in users
        )

    def _fill(
        self,
        rising: int,
        groups: Mapping[int, Sequence[tuple[float, int]]],
        full: dict[int, float],
        caps: Sequence[tuple[float, int]],
    ) -> Levels:
        """Raise the common rate until every activity is stopped."""
        left, level = list(self._capacities), 0.0
        levels = np.full(len(left) + 1, np.inf)
        while rising:
            lowest = min(full.values()) if full else math.inf
            level = max(level, lowest)  # rounding must not let it fall
            stopped, stopped_at = _reached(caps, rising, level)
            if not stopped:
                stopped_at, limit = level, lowest + abs(lowest) * TIE
                for resource in [resource for resource, at in full.items() if at <= limit]:
                    levels[resource] = level
                    for _, who in groups[resource]:
                        stopped |= who
                stopped &= rising
            rising &= ~stopped
            for resource in list(full):
                used = units = 0.0
                for weight, who in groups[resource]:
                    used += weight * (who & stopped).bit_count()
                    units += weight * (who & rising).bit_count()
                if used:
                    left[resource] -= used * stopped_at
                    if units:
                        full[resource] = left[resource] / units
                    else:
                        del full[resource]
        return levels


def _reached(caps: Sequence[tuple[float, int]], rising: int, level: float) -> tuple[int, float]:
    """Return the classes at the lowest cap that is not above the level.

    Stopping them below the level is safe, because it only leaves more to the others.
    """
    for cap, who in caps:
        if cap > level:
            break
        if who & rising:
            return who & rising, cap
    return 0, 0.0


def _count(number: int, running: int, more: Sequence[int]) -> int:
    """Return the number of activities of a class."""
    return (running >> number & 1) + sum((who >> number & 1) << place for place, who in enumerate(more))


def bits(number: int) -> Iterator[int]:
    """Yield the positions of the bits that are set."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
