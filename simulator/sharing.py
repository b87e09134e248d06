"""Activities in simulated time. They share resources fairly; rates are recomputed when one starts or ends.

Activities of a class run at the same rate, so only the one that ends next is tracked. The rates of a set of running
classes are cached, in at most `MEMO_BYTES`, because training programs repeat themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray
from simpy import Environment, Event

from simulator.fairness import ActivityClass, Levels, Solver, bits

Numbers = NDArray[np.intp]
Floats = NDArray[np.float64]
Callback = Callable[[], object]
BatchCallback = Callable[[Numbers], object]

SAME_INSTANT = 1e-12  # absolute (seconds) and relative to the current time: closer ends coincide
MEMO_BYTES = 256 << 20
ENTRY_BYTES = 1 << 10  # overhead of a cache entry: the key and the objects
FIRST_CLASSES = 64
UNLIMITED = 1e300  # rate of an activity that nothing limits


class _Classes:
    """All activity classes by number: uses, caps, and running activities.

    `left_s` is the remaining time of the activity that ends next, at the `rates` of the last update; infinite if none
    runs. That activity is number `slot` of batch `batch`. The initial rate of a class is that of a single activity.
    `uses` has a column per class, padded with a resource that is never full.
    """

    def __init__(self, nothing: int) -> None:
        self.uses = np.full((1, FIRST_CLASSES), nothing, dtype=np.intp)
        self.caps = np.full(FIRST_CLASSES, UNLIMITED)
        self.left_s = np.full(FIRST_CLASSES, np.inf)
        self.rates = np.ones(FIRST_CLASSES)
        self.batch = np.zeros(FIRST_CLASSES, dtype=np.int64)
        self.slot = np.zeros(FIRST_CLASSES, dtype=np.intp)
        self.nothing = nothing

    def describe(self, number: int, kind: ActivityClass, alone: float) -> None:
        """Add a class: its uses, its cap, and the rate of a single activity."""
        while number >= len(self.caps):
            half = len(self.caps)
            for name in ("caps", "left_s", "rates", "batch", "slot", "uses"):
                setattr(self, name, np.concatenate([getattr(self, name)] * 2, axis=-1))
            self.caps[half:], self.left_s[half:], self.uses[:, half:] = UNLIMITED, np.inf, self.nothing
        if len(kind.uses) > len(self.uses):
            more = np.full((len(kind.uses) - len(self.uses), len(self.caps)), self.nothing, dtype=np.intp)
            self.uses = np.vstack([self.uses, more])
        self.uses[: len(kind.uses), number] = [resource for resource, _ in kind.uses]
        self.rates[number] = min(alone, UNLIMITED)
        if kind.cap is not None:
            self.caps[number] = min(kind.cap, UNLIMITED)

    def rates_of(self, numbers: Numbers, levels: Levels) -> Floats:
        """Return the rates of classes, given the level at which each resource is full, followed by infinity."""
        rates: Floats = np.minimum.reduce(levels[self.uses[:, numbers]])
        np.minimum(rates, self.caps[numbers], out=rates)
        return rates


class Sharing:
    """Starts activities on resources with the given capacities, and calls back when they end."""

    def __init__(self, environment: Environment, capacities: Sequence[float]) -> None:
        self._environment = environment
        self._solver = Solver(capacities)
        self._numbers: dict[ActivityClass, int] = {}
        self._classes = _Classes(len(capacities))
        self._running = 0  # running classes, as a set of bits
        self._later: dict[int, list[tuple[float, int, int]]] = {}  # class -> (end, batch, slot) but the nearest
        self._ends: dict[int, float] = {}  # for these classes: progress at which the nearest ends
        self._more: list[int] = []  # bit n of the number of activities in `_later`, by set of classes
        self._alone: dict[int, Callback] = {}  # batch -> callback of a single activity
        self._batches: dict[int, tuple[BatchCallback, int]] = {}  # batch -> callback, activities left
        self._started = 0
        self._memo: dict[object, tuple[Numbers, Floats]] = {}
        self._memo_bytes = 0
        self._updated_s = 0.0
        self._generation = 0
        self._flushing = False
        self._delayed: dict[float, list[Callback]] = {}

    def number(self, kind: ActivityClass) -> int:
        """Return the number of an activity class, for `start`. Equal classes have the same number."""
        if kind not in self._numbers:
            number = self._numbers[kind] = self._solver.add(kind)
            self._classes.describe(number, kind, self._solver.alone(number))
        return self._numbers[kind]

    def start(self, number: int, work: float, done: Callback) -> None:
        """Start an activity that progresses by `work`, and call `done` when it ends."""
        self._started += 1
        self._alone[self._started] = done
        self._start_one(number, work, self._started, 0)
        self._share_anew()

    def start_many(self, numbers: Numbers, work: Floats, done: BatchCallback) -> None:
        """Start an activity of each of these classes.

        `done` is called with the indices of those that end at the same time.
        """
        self._started += 1
        self._batches[self._started] = done, len(numbers)
        batch, classes, slots = self._started, self._classes, np.arange(len(numbers))
        starting = self._set_of(numbers)
        if starting & self._running or starting.bit_count() < len(numbers):
            for slot, number, amount in zip(slots.tolist(), numbers.tolist(), work.tolist(), strict=True):
                self._start_one(number, amount, batch, slot)
        else:
            self._running |= starting
            classes.left_s[numbers] = work / classes.rates[numbers] + self._elapsed_s()
            classes.batch[numbers] = batch
            classes.slot[numbers] = slots
        self._share_anew()

    def after(self, delay_s: float, call: Callback) -> None:
        """Call `call` after a delay. Calls at the same moment are one event and run in the order of request."""
        moment = self._environment.now + delay_s
        calls = self._delayed.get(moment)
        if calls is None:
            calls = self._delayed[moment] = []
            self._at(delay_s, lambda _: self._call_delayed(moment))
        calls.append(call)

    def _call_delayed(self, moment: float) -> None:
        for call in self._delayed.pop(moment):
            call()

    def _set_of(self, numbers: Numbers) -> int:
        chosen = np.zeros(len(self._classes.caps), dtype=np.bool_)
        chosen[numbers] = True
        return int.from_bytes(np.packbits(chosen, bitorder="little").tobytes(), "little")

    def _start_one(self, number: int, work: float, batch: int, slot: int) -> None:
        classes, elapsed_s = self._classes, self._elapsed_s()
        rate = float(classes.rates[number])
        if self._running >> number & 1:
            left = (float(classes.left_s[number]) - elapsed_s) * rate
            nearest = self._ends.setdefault(number, left)
            end = nearest - left + work
            waiting = self._later.setdefault(number, [])
            self._recount(number, len(waiting), len(waiting) + 1)
            if work >= left:
                heappush(waiting, (end, batch, slot))
                return
            heappush(waiting, (nearest, int(classes.batch[number]), int(classes.slot[number])))
            self._ends[number] = end
        self._running |= 1 << number
        classes.left_s[number] = work / rate + elapsed_s
        classes.batch[number] = batch
        classes.slot[number] = slot

    def _recount(self, number: int, before: int, now: int) -> None:
        for place in bits(before ^ now):
            self._more += [0] * (place + 1 - len(self._more))
            self._more[place] ^= 1 << number

    def _elapsed_s(self) -> float:
        elapsed_s: float = self._environment.now - self._updated_s
        return elapsed_s

    def _at(self, delay_s: float, call: Callable[[Event], None]) -> None:
        self._environment.timeout(delay_s).callbacks.append(call)

    def _share_anew(self) -> None:
        """Recompute the rates once at the end of this instant, however many activities start and end in it."""
        if not self._flushing:
            self._flushing = True
            self._at(0.0, self._flush)

    def _flush(self, _: Event | None = None) -> None:
        if self._environment.peek() <= self._environment.now:
            self._flushing = True
            self._at(0.0, self._flush)  # after all other events of this instant
            return
        self._flushing = False
        self._generation += 1
        if self._running:
            soonest_s, generation = self._change_rates(), self._generation
            self._at(max(soonest_s, 0.0), lambda _: self._complete(generation))

    def _change_rates(self) -> float:
        """Set the rates of all running activities; return the seconds until the first ends."""
        classes, (running, rates) = self._classes, self._allocated()
        left_s = classes.left_s[running]
        left_s -= self._elapsed_s()
        left_s *= classes.rates[running]
        left_s /= rates
        classes.left_s[running] = left_s
        classes.rates[running] = rates
        self._updated_s = self._environment.now
        return float(np.minimum.reduce(left_s))

    def _allocated(self) -> tuple[Numbers, Floats]:
        """Return the running classes and their rates."""
        key = self._running, *self._more
        allocated = self._memo.get(key)
        if allocated is None:
            levels = self._solver.levels(self._running, self._more)
            (running,) = np.nonzero(self._classes.left_s < np.inf)
            allocated = running, self._classes.rates_of(running, levels)
            nbytes = ENTRY_BYTES + sum(array.nbytes for array in allocated)
            if self._memo_bytes + nbytes > MEMO_BYTES:
                self._memo.clear()
                self._memo_bytes = 0
            self._memo[key] = allocated
            self._memo_bytes += nbytes
        return allocated

    def _complete(self, generation: int) -> None:
        if generation != self._generation:
            return
        classes, near_s = self._classes, SAME_INSTANT * (1 + self._environment.now)
        (ended,) = np.nonzero(classes.left_s <= self._elapsed_s() + near_s)
        batches, slots = classes.batch[ended], classes.slot[ended]
        self._running ^= self._set_of(ended)
        if self._later:
            batches, slots = self._next_in_line(ended, batches, slots, near_s)
        else:
            classes.left_s[ended] = np.inf
        was_flushing, self._flushing = self._flushing, True  # callbacks need not request it
        self._call_back(batches, slots)
        if not was_flushing:
            self._flush()

    def _next_in_line(
        self, ended: Numbers, batches: NDArray[np.int64], slots: Numbers, near_s: float
    ) -> tuple[NDArray[np.int64], Numbers]:
        """Start tracking the activities that follow those that ended, and add those that end at the same time."""
        classes, also = self._classes, []
        for number in ended.tolist():
            later = self._later.get(number)
            if later is None:
                classes.left_s[number] = np.inf
                continue
            before, nearest, rate = len(later), self._ends[number], float(classes.rates[number])
            while later and later[0][0] <= nearest + rate * near_s:
                also.append(heappop(later)[1:])
            if later:
                self._ends[number], classes.batch[number], classes.slot[number] = heappop(later)
                classes.left_s[number] += (self._ends[number] - nearest) / rate
                self._running |= 1 << number
            else:
                classes.left_s[number] = np.inf
            self._recount(number, before, len(later))
            if not later:
                del self._later[number], self._ends[number]
        if also:
            more = np.array(also, dtype=np.int64)
            return np.concatenate([batches, more[:, 0]]), np.concatenate([slots, more[:, 1]])
        return batches, slots

    def _call_back(self, batches: NDArray[np.int64], slots: Numbers) -> None:
        """Notify each batch which of its activities ended, in the order in which the batches started."""
        order = np.lexsort((slots, batches))
        batches, slots = batches[order], slots[order]
        starts = np.flatnonzero(np.diff(batches, prepend=-1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(batches)], strict=True):
            self._tell(int(batches[start]), slots[start:stop])

    def _tell(self, batch: int, slots: Numbers) -> None:
        alone = self._alone.pop(batch, None)
        if alone is not None:
            alone()
            return
        done, left = self._batches.pop(batch)
        if left > len(slots):
            self._batches[batch] = done, left - len(slots)
        done(slots)
