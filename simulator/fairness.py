"""Weighted max-min fairness: how running activities share resources.

An activity uses each of a set of resources with a coefficient, in units per unit of its progress, and may have a cap of
its own. Rates rise together from zero (progressive filling) until a resource is full or a cap is reached; who is
stopped by it keeps that rate, the others rise on. Weights are in the choice of the unit of progress.

Sets of classes are bits of an integer, so that stopping many costs as much as stopping one. What filling finds is the
level at which each resource became full: a class's rate is the least of its cap and of the levels of what it uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Levels = NDArray[np.float64]

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


def rate(kind: ActivityClass, levels: Sequence[float] | Levels) -> float:
    """Return a class's rate, given the level at which each resource is full."""
    return min([math.inf if kind.cap is None else kind.cap, *(levels[resource] for resource, _ in kind.uses)])


class Solver:
    """Finds the levels of sets of classes, of which a class has one activity, and 2**n more if it is in `more[n]`."""

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = list(capacities)
        self._classes: list[ActivityClass] = []
        self._fastest: list[float] = []  # per class, the rate of an activity that is alone
        self._plain: list[dict[float, int]] = [{} for _ in capacities]  # resource -> coefficient -> uncapped classes
        self._fastest_plain = [0.0] * len(self._capacities)
        self._capped = 0

    def add(self, kind: ActivityClass) -> int:
        """Add a class and return its number, which is its bit in sets."""
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
        """Return the rate of an activity of a class where no other runs."""
        return self._fastest[number]

    def levels(self, running: int, more: Sequence[int] = ()) -> Levels:
        """Return the level of each resource where these classes run, infinite where it is not full, and infinity."""
        groups: dict[int, list[tuple[float, int]]] = {}  # resource -> (units per unit of the rate, whose)
        full: dict[int, float] = {}  # resource -> the level at which it will be full
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
        """Return who uses a resource, and how many units of it per unit of the rate."""
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
        """Return a bound on what of a resource can be in use at once."""
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
        """Raise the common rate until everyone is stopped."""
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
    """Return those at the lowest cap not above the level: below it, stopping one only leaves more to the others."""
    for cap, who in caps:
        if cap > level:
            break
        if who & rising:
            return who & rising, cap
    return 0, 0.0


def _count(number: int, running: int, more: Sequence[int]) -> int:
    """Return how many activities a class has."""
    return (running >> number & 1) + sum((who >> number & 1) << place for place, who in enumerate(more))


def bits(number: int) -> Iterator[int]:
    """Yield the positions of the bits that are set."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
