"""Activities in simulated time: what runs shares the machine's resources fairly, recomputed when one starts or ends.

Activities of one class run at one rate, so each class keeps one running total of progress, and an activity ends when
the total has grown by its work. Rates of a set of running classes are remembered: a training program repeats itself.
There is one pending completion at any time; its number says whether it is still the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

from simpy import Environment, Event

from simulator.fairness import ActivityClass, fair_rates

Callback = Callable[[], object]

SAME_INSTANT = 1e-12  # seconds, and share of the time reached: ends closer than this are one instant
MEMO_ENTRIES = 20_000


class _Running:
    """The running activities of one class: progress so far, common rate, and at which progress each one ends."""

    __slots__ = ("done", "ends", "rate")

    def __init__(self) -> None:
        self.done = 0.0
        self.rate = 0.0
        self.ends: list[tuple[float, int, Callback]] = []


class Sharing:
    """Starts activities on resources with the given capacities, and calls back when each one ends."""

    def __init__(self, environment: Environment, capacities: Sequence[float]) -> None:
        self._environment = environment
        self._capacities = tuple(capacities)
        self._classes: list[ActivityClass] = []
        self._numbers: dict[ActivityClass, int] = {}
        self._running: dict[int, _Running] = {}
        self._memo: dict[frozenset[tuple[int, int]], tuple[tuple[int, float], ...]] = {}
        self._sequence = count()
        self._updated_s = 0.0
        self._generation = 0
        self._flushing = False
        self._delayed: dict[float, list[Callback]] = {}

    def number(self, kind: ActivityClass) -> int:
        """Return the number of a class of activities, which `start` takes; equal classes have one number."""
        if kind not in self._numbers:
            self._numbers[kind] = len(self._classes)
            self._classes.append(kind)
        return self._numbers[kind]

    def start(self, number: int, work: float, done: Callback) -> None:
        """Start an activity that ends, calling `done`, when it has progressed by `work`."""
        running = self._running.get(number)
        if running is None:
            running = self._running[number] = _Running()
        ahead = running.rate * (self._environment.now - self._updated_s)
        heappush(running.ends, (running.done + ahead + work, next(self._sequence), done))
        self._share_anew()

    def after(self, delay_s: float, call: Callback) -> None:
        """Call `call` after a delay; calls for the same moment are one event, made in the order of asking."""
        moment = self._environment.now + delay_s
        calls = self._delayed.get(moment)
        if calls is None:
            calls = self._delayed[moment] = []
            self._at(delay_s, lambda _: self._call_delayed(moment))
        calls.append(call)

    def _call_delayed(self, moment: float) -> None:
        for call in self._delayed.pop(moment):
            call()

    def _share_anew(self) -> None:
        """Recompute the rates at the end of this instant, once, however many activities start and end in it."""
        if not self._flushing:
            self._flushing = True
            self._at(0.0, self._flush)

    def _at(self, delay_s: float, call: Callable[[Event], None]) -> None:
        self._environment.timeout(delay_s).callbacks.append(call)

    def _flush(self, _: Event) -> None:
        if self._environment.peek() <= self._environment.now:
            self._at(0.0, self._flush)  # behind what else happens in this instant
            return
        self._flushing = False
        self._advance()
        active = frozenset((number, len(running.ends)) for number, running in self._running.items())
        rates = self._memo.get(active)
        if rates is None:
            rates = self._solve(active)
        soonest = float("inf")
        for number, rate in rates:
            running = self._running[number]
            running.rate = rate
            left = (running.ends[0][0] - running.done) / rate
            soonest = min(soonest, left)
        self._generation += 1
        if rates:
            generation = self._generation
            delay_s = max(soonest, 0.0)
            self._at(delay_s, lambda _: self._complete(generation))

    def _solve(self, active: frozenset[tuple[int, int]]) -> tuple[tuple[int, float], ...]:
        order = sorted(active)
        classes = [self._classes[number] for number, _ in order]
        rates = fair_rates(self._capacities, classes, [n for _, n in order])
        if len(self._memo) >= MEMO_ENTRIES:
            self._memo.clear()
        result = tuple((number, rate) for (number, _), rate in zip(order, rates, strict=True))
        self._memo[active] = result
        return result

    def _advance(self) -> None:
        elapsed = self._environment.now - self._updated_s
        self._updated_s = self._environment.now
        if elapsed > 0:
            for running in self._running.values():
                running.done += running.rate * elapsed

    def _complete(self, generation: int) -> None:
        if generation != self._generation:
            return
        self._advance()
        near_s = SAME_INSTANT * (1 + self._environment.now)
        ended: list[tuple[int, Callback]] = []
        for number, running in list(self._running.items()):
            reached = running.done + running.rate * near_s
            ends = running.ends
            while ends and ends[0][0] <= reached:
                _, order, done = heappop(ends)
                ended.append((order, done))
            if not ends:
                del self._running[number]
        self._share_anew()
        for _, done in sorted(ended, key=lambda pair: pair[0]):
            done()
