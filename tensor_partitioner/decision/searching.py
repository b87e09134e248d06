"""Branch and bound: candidates in the order of their bounds, projected until no other can be faster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from planner.parallel import Parallel
from simulator.projection.result import Projection
from tensor_partitioner.decision.bounds import Bounds
from tensor_partitioner.decision.candidates import Branch, by_hand
from tensor_partitioner.decision.leaves import Leaf, leaves

LATE_S = 1e12
"""What comes last has more seconds."""


@dataclass(eq=False)
class Search:
    """A search of a space, given its bounds, for the fastest way that fits in a device's memory.

    `price` says what a way takes, None where it cannot be. Where the bounds are of other steps than are priced, nothing
    is known to take less than `floor_s`, and they say what is tried first. `projected` are ways, with the bound of
    their seconds and what came of them. Of all that were `considered`, so many are `impossible`, and so many
    `unfinished` for want of time, of which none takes less than `lower_s`; all others are above the best or too large
    by their bounds.
    """

    bounds: Bounds
    price: Callable[[Parallel], Projection | None]
    capacity: float
    until: float
    floor_s: float | None = None
    projected: dict[Parallel, tuple[float, Projection]] = field(default_factory=dict)
    considered: int = 0
    impossible: int = 0
    unfinished: int = 0
    lower_s: float = float("inf")
    _best_s: float = float("inf")
    _tried: set[Parallel] = field(default_factory=set)
    _smallest: tuple[float, Branch | None] = (float("inf"), None)
    _waiting: list[tuple[float, float, int, Branch | Leaf]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def bounded_away(self) -> int:
        """How many were left out by their bounds."""
        return self.considered - self.impossible - self.unfinished - len(self.projected)

    def run(self, per_node: int, below_s: float = float("inf")) -> None:
        """Search; what people would do anyway comes first.

        However late it is, it goes on until a way fits or, with a `floor_s`, one is priced. Nothing is looked at that
        does not take less than `below_s`.
        """
        space, self._best_s = self.bounds.space, below_s
        for ways in by_hand(space, per_node) if below_s == float("inf") else ():
            self._try_by_hand(ways)
        for degrees in space.degrees():
            for branch in space.branches(degrees):
                self.considered += space.count(branch)
                self._add(branch, 0.0)
        while self._waiting and self._waiting[0][0] < self._best_s:
            if self._is_over:
                self._stop()
                return
            _, bound_s, _, item = heappop(self._waiting)
            if isinstance(item, Leaf):
                self._try(item)
            else:
                self._refine(item, bound_s)
        if self._best_s == float("inf") and self._smallest[1] is not None:
            self._try_smallest(self._smallest[1])

    @property
    def _is_over(self) -> bool:
        enough = self._best_s < float("inf") if self.floor_s is None else bool(self.projected)
        return enough and time.monotonic() > self.until

    def _stop(self) -> None:
        """Leave out what is waiting."""
        left = [item for bound_s, _, _, item in self._waiting if bound_s < self._best_s]
        tried = Counter(map(_branch_of, self._tried))
        self.lower_s = self._waiting[0][0]
        self.unfinished = sum(
            1 if isinstance(item, Leaf) else self.bounds.space.count(item) - tried[item] for item in left
        )

    def _add(self, branch: Branch, bound_s: float) -> None:
        """Let a branch wait for its turn, if it may fit."""
        nbytes = self.bounds.least_bytes(branch)  # for which one device is worked out, which bounds seconds, too
        self._wait(max(bound_s, self.bounds.step_s(branch)), nbytes, branch, branch)

    def _wait(self, bound_s: float, nbytes: float, branch: Branch, item: Branch | Leaf) -> None:
        if nbytes <= self.capacity:
            heappush(self._waiting, (self._least_s(bound_s), bound_s, next(self._numbers), item))
        elif self.floor_s is not None:  # which may fit where the bounds say that it does not
            heappush(self._waiting, (self.floor_s, LATE_S + nbytes, next(self._numbers), item))
        else:
            self._smallest = min(self._smallest, (nbytes, branch), key=lambda row: row[0])

    def _least_s(self, bound_s: float) -> float:
        """Return the seconds that nothing with a bound takes less than."""
        return bound_s if self.floor_s is None else self.floor_s

    def _refine(self, branch: Branch, bound_s: float) -> None:
        """Bound a branch by one replica more, or by its own, and then its candidates each."""
        if self.bounds.step_s(branch) > bound_s or self.bounds.build(branch):
            self._add(branch, bound_s)
        elif self.bounds.built(branch) is None:
            self.impossible += self.bounds.space.count(branch)
        else:
            for leaf in leaves(self.bounds, branch, self.capacity):
                if leaf.way not in self._tried and self._least_s(leaf.seconds) < self._best_s:
                    self._wait(max(bound_s, leaf.seconds), leaf.nbytes, branch, leaf)

    def _try(self, leaf: Leaf) -> bool:
        """Project a candidate; True if it fits."""
        self._tried.add(leaf.way)
        projection = self.price(leaf.way)
        if projection is None:
            self.impossible += 1
            return False
        self.projected[leaf.way] = self._least_s(leaf.seconds), projection
        if projection.fits:
            self._best_s = min(self._best_s, projection.seconds)
        return projection.fits

    def _try_by_hand(self, ways: Sequence[Parallel]) -> None:
        """Project ways in turn until one fits; where none may, that of least bytes."""
        may_fit = [way for way in ways if self.bounds.least_bytes(_branch_of(way)) <= self.capacity]
        for way in may_fit:
            if self.floor_s is not None and self._is_over:
                return
            leaf = self._leaf(way)
            if leaf is not None and leaf.nbytes <= self.capacity and self._try(leaf):
                return
        if ways:
            leaf = self._leaf(min(ways, key=lambda way: self.bounds.least_bytes(_branch_of(way))))
            if leaf is not None and leaf.way not in self._tried:
                self._try(leaf)

    def _leaves(self, branch: Branch) -> Iterable[Leaf]:
        """Return the ways of a branch with their bounds; none where it cannot be."""
        while self.bounds.build(branch):
            pass
        return leaves(self.bounds, branch, self.capacity) if self.bounds.built(branch) is not None else ()

    def _leaf(self, way: Parallel) -> Leaf | None:
        return next((leaf for leaf in self._leaves(_branch_of(way)) if leaf.way == way), None)

    def _try_smallest(self, branch: Branch) -> None:
        """Price the way of a branch that needs least, to say how far it is from fitting."""
        leaf = min(self._leaves(branch), key=lambda leaf: leaf.nbytes, default=None)
        if leaf is not None and leaf.way not in self._tried:
            self._try(leaf)


def _branch_of(way: Parallel) -> Branch:
    within = Parallel(dp=way.ep, ep=way.ep, cp=way.cp, tp=way.tp, sp=way.sp)
    return Branch(within, way.pp, way.dp, way.micro_batch or 0, way.recompute)
