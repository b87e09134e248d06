"""Activities in simulated time: what runs shares the machine's resources fairly, recomputed when one starts or ends.

Activities of one class run at one rate, so each class keeps one running total of progress, and an activity ends when
the total has grown by its work. Totals, rates and the nearest end of every class are arrays, and activities are started
and ended by many at once. Rates of a set of running classes are remembered: a training program repeats itself.
There is one pending completion at any time; its number says whether it is still the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray
from simpy import Environment, Event

from simulator.fairness import ActivityClass, Solver, bits

Numbers = NDArray[np.intp]
Floats = NDArray[np.float64]
Callback = Callable[[], object]
BatchCallback = Callable[[Numbers], object]

SAME_INSTANT = 1e-12  # seconds, and share of the time reached: ends closer than this are one instant
MEMO_ENTRIES = 4_000
FEW = 16  # activities that are not worth sorting in bulk
FIRST_CLASSES = 64
FIRST_USES = 8


class _Classes:
    """What is known of every class, by its number: what it uses, its cap, and its running activities.

    `done` is the progress so far, `ends` the progress at which its nearest activity ends (infinite where none runs),
    which is the one in place `slot` of batch `batch`. `uses` is filled up with the number of a resource that is never
    full.
    """

    def __init__(self, nothing: int) -> None:
        self.nothing = nothing
        self.uses = np.full((FIRST_CLASSES, FIRST_USES), nothing, dtype=np.intp)
        self.caps = np.full(FIRST_CLASSES, np.inf)
        self.done = np.zeros(FIRST_CLASSES)
        self.ends = np.full(FIRST_CLASSES, np.inf)
        self.rates = np.zeros(FIRST_CLASSES)
        self.batch = np.zeros(FIRST_CLASSES, dtype=np.int64)
        self.slot = np.zeros(FIRST_CLASSES, dtype=np.intp)
        self.running = np.zeros(FIRST_CLASSES, dtype=np.bool_)

    def describe(self, number: int, kind: ActivityClass) -> None:
        """Note a new class's uses and cap."""
        while number >= len(self.caps):
            for name in ("caps", "done", "ends", "rates", "batch", "slot", "running", "uses"):
                setattr(self, name, np.concatenate([getattr(self, name)] * 2))
            half = len(self.caps) // 2
            self.ends[half:], self.running[half:] = np.inf, False
            self.caps[half:], self.uses[half:] = np.inf, self.nothing
        while len(kind.uses) > self.uses.shape[1]:
            self.uses = np.hstack([self.uses, np.full_like(self.uses, self.nothing)])
        self.uses[number, : len(kind.uses)] = [resource for resource, _ in kind.uses]
        if kind.cap is not None:
            self.caps[number] = kind.cap

    def rates_of(self, numbers: Numbers, levels: Sequence[float]) -> Floats:
        """Return classes' rates, given the level at which each resource is full."""
        full = np.array([*levels, np.inf])
        found: Floats = np.minimum(full[self.uses[numbers]].min(axis=1), self.caps[numbers])
        return found


class Sharing:
    """Starts activities on resources with the given capacities, and calls back when they end."""

    def __init__(self, environment: Environment, capacities: Sequence[float]) -> None:
        self._environment = environment
        self._solver = Solver(capacities)
        self._numbers: dict[ActivityClass, int] = {}
        self._classes = _Classes(len(capacities))
        self._later: dict[int, list[tuple[float, int, int]]] = {}  # class -> (end, batch, slot) beyond the nearest
        self._more: list[int] = []  # the classes that `later` has 2**n activities of, as the solver wants them
        self._batches: dict[int, tuple[BatchCallback, int]] = {}  # callback, activities left
        self._started = 0
        self._running: Numbers = np.zeros(0, dtype=np.intp)
        self._rates: Floats = np.zeros(0)
        self._memo: dict[object, tuple[Numbers, Floats]] = {}
        self._updated_s = 0.0
        self._generation = 0
        self._flushing = False
        self._delayed: dict[float, list[Callback]] = {}

    def number(self, kind: ActivityClass) -> int:
        """Return the number of a class of activities, which `start` takes; equal classes have one number."""
        if kind not in self._numbers:
            self._numbers[kind] = self._solver.add(kind)
            self._classes.describe(self._numbers[kind], kind)
        return self._numbers[kind]

    def start(self, number: int, work: float, done: Callback) -> None:
        """Start an activity that ends, calling `done`, when it has progressed by `work`."""
        batch = self._new_batch(lambda _: done(), 1)
        self._start_one(number, work, batch, 0)
        self._share_anew()

    def start_many(self, numbers: Numbers, work: Floats, done: BatchCallback) -> None:
        """Start an activity of each of these distinct classes; `done` is given the places of those that end at once."""
        batch, classes = self._new_batch(done, len(numbers)), self._classes
        slots = np.arange(len(numbers))
        busy = classes.running[numbers]
        if busy.any():
            for slot in np.flatnonzero(busy).tolist():
                self._start_one(int(numbers[slot]), float(work[slot]), batch, slot)
            slots = np.flatnonzero(~busy)
            numbers, work = numbers[slots], work[slots]
        classes.running[numbers] = True
        classes.done[numbers] = 0.0
        classes.rates[numbers] = 0.0
        classes.ends[numbers] = work
        classes.batch[numbers] = batch
        classes.slot[numbers] = slots
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

    def _new_batch(self, done: BatchCallback, size: int) -> int:
        self._started += 1
        self._batches[self._started] = done, size
        return self._started

    def _start_one(self, number: int, work: float, batch: int, slot: int) -> None:
        classes = self._classes
        if classes.running[number]:
            end = float(classes.done[number] + classes.rates[number] * self._elapsed_s()) + work
            waiting = self._later.setdefault(number, [])
            self._recount(number, len(waiting), len(waiting) + 1)
            if end >= classes.ends[number]:
                heappush(waiting, (end, batch, slot))
                return
            heappush(waiting, (float(classes.ends[number]), int(classes.batch[number]), int(classes.slot[number])))
        else:
            end = work
            classes.running[number] = True
            classes.done[number] = 0.0
            classes.rates[number] = 0.0
        classes.ends[number] = end
        classes.batch[number] = batch
        classes.slot[number] = slot

    def _recount(self, number: int, before: int, now: int) -> None:
        for place in bits(before ^ now):
            self._more += [0] * (place + 1 - len(self._more))
            self._more[place] ^= 1 << number

    def _elapsed_s(self) -> float:
        return float(self._environment.now) - self._updated_s

    def _at(self, delay_s: float, call: Callable[[Event], None]) -> None:
        self._environment.timeout(delay_s).callbacks.append(call)

    def _share_anew(self) -> None:
        """Recompute the rates at the end of this instant, once, however many activities start and end in it."""
        if not self._flushing:
            self._flushing = True
            self._at(0.0, self._flush)

    def _flush(self, _: Event | None = None) -> None:
        if self._environment.peek() <= self._environment.now:
            self._flushing = True
            self._at(0.0, self._flush)  # behind what else happens in this instant
            return
        self._flushing = False
        self._advance()
        running, rates = self._running, self._rates = self._allocated()
        self._generation += 1
        if len(running):
            classes, generation = self._classes, self._generation
            classes.rates[running] = rates
            soonest = float(((classes.ends[running] - classes.done[running]) / rates).min())
            self._at(max(soonest, 0.0), lambda _: self._complete(generation))

    def _allocated(self) -> tuple[Numbers, Floats]:
        """Return the running classes with their rates."""
        packed = np.packbits(self._classes.running, bitorder="little").tobytes()
        key = packed.rstrip(b"\0"), *self._more
        found = self._memo.get(key)
        if found is None:
            levels = self._solver.levels(int.from_bytes(packed, "little"), self._more)
            running = np.flatnonzero(self._classes.running)
            if len(self._memo) >= MEMO_ENTRIES:
                self._memo.clear()
            found = self._memo[key] = running, self._classes.rates_of(running, levels)
        return found

    def _advance(self) -> None:
        elapsed_s = self._elapsed_s()
        self._updated_s = self._environment.now
        if elapsed_s > 0:
            self._classes.done[self._running] += self._rates * elapsed_s

    def _complete(self, generation: int) -> None:
        if generation != self._generation:
            return
        self._advance()
        classes, running = self._classes, self._running
        near_s = SAME_INSTANT * (1 + self._environment.now)
        reached = classes.done[running] + self._rates * near_s
        ended = running[classes.ends[running] <= reached]
        batches, slots = classes.batch[ended], classes.slot[ended]
        classes.ends[ended] = np.inf
        classes.running[ended] = False
        if self._later:
            batches, slots = self._next_in_line(ended, batches, slots, near_s)
        asked, self._flushing = self._flushing, True  # so that callbacks need not ask
        self._call_back(batches, slots)
        if not asked:
            self._flush()

    def _next_in_line(
        self, ended: Numbers, batches: NDArray[np.int64], slots: Numbers, near_s: float
    ) -> tuple[NDArray[np.int64], Numbers]:
        """Let those follow that wait behind the activities that ended, or end with them."""
        classes, also = self._classes, []
        for number in ended.tolist():
            later = self._later.get(number)
            if later is None:
                continue
            before = len(later)
            reached = classes.done[number] + classes.rates[number] * near_s
            while later and later[0][0] <= reached:
                also.append(heappop(later)[1:])
            if later:
                classes.ends[number], classes.batch[number], classes.slot[number] = heappop(later)
                classes.running[number] = True
            self._recount(number, before, len(later))
            if not later:
                del self._later[number]
        if also:
            more = np.array(also, dtype=np.int64)
            return np.concatenate([batches, more[:, 0]]), np.concatenate([slots, more[:, 1]])
        return batches, slots

    def _call_back(self, batches: NDArray[np.int64], slots: Numbers) -> None:
        """Tell every batch which of its activities ended, in the order in which batches started."""
        ended: dict[int, list[int]] = {}
        if len(batches) <= FEW:
            for batch, slot in sorted(zip(batches.tolist(), slots.tolist(), strict=True)):
                ended.setdefault(batch, []).append(slot)
            for batch, places in ended.items():
                self._tell(batch, np.array(places, dtype=np.intp))
            return
        order = np.argsort(batches, kind="stable")
        batches, slots = batches[order], slots[order]
        starts = np.flatnonzero(np.diff(batches, prepend=-1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(batches)], strict=True):
            self._tell(int(batches[start]), slots[start:stop])

    def _tell(self, batch: int, slots: Numbers) -> None:
        done, left = self._batches.pop(batch)
        if left > len(slots):
            self._batches[batch] = done, left - len(slots)
        done(slots)
