"""Weighted max-min fairness: how running activities share resources.

An activity uses each of a set of resources with a coefficient, in units per unit of its progress, and may have a cap of
its own. Rates rise together from zero (progressive filling) until a resource is full or a cap is reached; who is
stopped by it keeps that rate, the others rise on. Weights are in the choice of the unit of progress.

Sets of classes are bits of an integer, so that stopping many costs as much as stopping one. What filling finds is the
level at which each resource became full: a class's rate is the least of its cap and of the levels of what it uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Levels = NDArray[np.float64]

TIE = 1e-12  # relative difference below which two levels are one
MOST_ENDED = 8  # classes; where more end at once, filling begins anew


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


class _Step(NamedTuple):
    """Filling before a step: who rises, what is left of each resource, at which level each will be full, levels so far.

    Then the step itself: the level that it reached, and whom it stops.
    """

    rising: int
    left: list[float]
    full: dict[int, float]
    levels: Levels
    level: float
    stopped: int


class Solver:
    """Finds the levels of sets of classes.

    Where nothing but some activities ended since the set before, filling goes on from the first step that stopped one
    of them: what came earlier did not depend on them.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = list(capacities)
        self._classes: list[ActivityClass] = []
        self._fastest: list[float] = []  # per class, the rate of an activity that is alone
        self._plain: list[dict[float, int]] = [{} for _ in capacities]  # resource -> coefficient -> uncapped classes
        self._fastest_plain = [0.0] * len(self._capacities)
        self._capped = 0
        self._running = 0
        self._more: tuple[int, ...] = ()
        self._groups: dict[int, list[tuple[float, int]]] = {}  # resource -> (units per unit of the rate, whose)
        self._caps: list[tuple[float, int]] = []
        self._steps: list[_Step] = []

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
        """Return the level of each resource where a set of classes runs, infinite where it is not full, and infinity.

        A class has one activity, and 2**n more if it is in `more[n]`.
        """
        before, self._running, self._more = (self._running, self._more), running, tuple(more)
        ended = self._ended(*before)
        return self._fill(self._resumed(ended, before[1]) if ended and self._steps else self._begin())

    def _ended(self, running: int, more: tuple[int, ...]) -> int:
        """Return the classes of which activities ended, none if there are many, or if any activity started."""
        changed = running ^ self._running
        if self._running & ~running or len(more) != len(self._more):
            return 0
        for before, now in zip(more, self._more, strict=True):
            changed |= before ^ now
        if changed.bit_count() > MOST_ENDED:
            return 0
        if more != self._more and any(
            _count(number, self._running, self._more) > _count(number, running, more) for number in bits(changed)
        ):
            return 0
        return changed

    def _resumed(self, ended: int, more: tuple[int, ...]) -> _Step:
        """Return to before the first step that stopped an activity that ended, as if it had not been there."""
        at = next((n for n, step in enumerate(self._steps) if step.stopped & ended), len(self._steps) - 1)
        step = self._steps[at]
        del self._steps[at:]
        if more != self._more:
            for resource in {resource for number in bits(ended) for resource, _ in self._classes[number].uses}:
                if resource in self._groups:
                    self._groups[resource] = self._users(resource)
        rising = step.rising & self._running
        full: dict[int, float] = {}
        for resource in step.full:
            units = 0.0
            for weight, who in self._groups[resource]:
                units += weight * (who & rising).bit_count()
            if units:
                full[resource] = step.left[resource] / units
        return _Step(rising, step.left, full, step.levels, step.level, 0)

    def _begin(self) -> _Step:
        """Note who uses what, of all that can become full, and which caps there are."""
        self._steps.clear()
        self._groups = {}
        caps: dict[float, int] = {}
        for number in bits(self._running & self._capped):
            cap = self._classes[number].cap or math.inf
            caps[cap] = caps.get(cap, 0) | 1 << number
        self._caps = sorted(caps.items())
        full: dict[int, float] = {}
        for resource, capacity in enumerate(self._capacities):
            users = self._users(resource)
            if self._most(resource, users) >= capacity * (1 - TIE):
                self._groups[resource] = users
                units = sum(weight * who.bit_count() for weight, who in users)
                full[resource] = capacity / units
        nowhere = np.full(len(self._capacities) + 1, np.inf)
        return _Step(self._running, list(self._capacities), full, nowhere, 0.0, 0)

    def _users(self, resource: int) -> list[tuple[float, int]]:
        """Return who uses a resource, and how many units of it per unit of the rate."""
        sets = [(1, self._running), *((2**place, who) for place, who in enumerate(self._more) if who)]
        found = [
            (units * count, who & among)
            for count, among in sets
            for units, who in self._plain[resource].items()
            if who & among
        ]
        for number in bits(self._running & self._capped):
            for used, units in self._classes[number].uses:
                if used == resource:
                    found.append((units * _count(number, self._running, self._more), 1 << number))
        return found

    def _most(self, resource: int, users: Sequence[tuple[float, int]]) -> float:
        """Return a bound on what of a resource can be in use at once."""
        return sum(
            units * who.bit_count() * self._fastest[who.bit_length() - 1]
            if who & self._capped
            else units * who.bit_count() * self._fastest_plain[resource]
            for units, who in users
        )

    def _fill(self, step: _Step) -> Levels:
        """Raise the common rate until everyone is stopped."""
        rising, left, full, levels, level, _ = step
        while rising:
            lowest = min(full.values()) if full else math.inf
            level = max(level, lowest)  # rounding must not let it fall
            stopped, stopped_at = self._reached(rising, level) if self._caps else (0, 0.0)
            found = levels
            if not stopped:
                stopped_at, limit, found = level, lowest + abs(lowest) * TIE, levels.copy()
                for resource, at in full.items():
                    if at <= limit:
                        found[resource] = level
                        for _, who in self._groups[resource]:
                            stopped |= who
                stopped &= rising
            self._steps.append(_Step(rising, left, full, levels, level, stopped))
            levels, rising = found, rising & ~stopped
            if rising:
                left, full = left.copy(), full.copy()
                self._stop(full, left, rising, stopped, stopped_at)
        return levels

    def _reached(self, rising: int, level: float) -> tuple[int, float]:
        """Return those at the lowest cap not above the level: below it, stopping one only leaves more to the others."""
        for cap, who in self._caps:
            if cap > level:
                break
            if who & rising:
                return who & rising, cap
        return 0, 0.0

    def _stop(self, full: dict[int, float], left: list[float], rising: int, stopped: int, rate: float) -> None:
        """Charge everything for those who stop, and find anew at which rate of the others it is full."""
        groups = self._groups
        for resource in list(full):
            used = units = 0.0
            for weight, who in groups[resource]:
                used += weight * (who & stopped).bit_count()
                units += weight * (who & rising).bit_count()
            if used:
                left[resource] -= used * rate
                if units:
                    full[resource] = left[resource] / units
                else:
                    del full[resource]


def _count(number: int, running: int, more: Sequence[int]) -> int:
    """Return how many activities a class has."""
    return (running >> number & 1) + sum((who >> number & 1) << place for place, who in enumerate(more))


def bits(number: int) -> Iterator[int]:
    """Yield the positions of the bits that are set."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
