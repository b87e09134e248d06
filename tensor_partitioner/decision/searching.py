"""Branch and bound: candidates in the order of their bounds, projected until no other can be faster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from planner.parallel import Parallel
from simulator.projection.result import Projection
from tensor_partitioner.decision.candidates import Branch, Space, by_hand
from tensor_partitioner.decision.leaves import Leaf


class BranchBounds(Protocol):
    """What bounds the branches of a space."""

    @property
    def space(self) -> Space:
        """The space."""

    def build(self, branch: Branch) -> bool:
        """Work out something more that bounds a branch; False where there is nothing."""

    def is_possible(self, branch: Branch) -> bool:
        """Return False for a branch whose replicas cannot be divided so."""

    def step_s(self, branch: Branch) -> float:
        """Return seconds that no candidate of a branch is below."""

    def guess_s(self, branch: Branch) -> float:
        """Return about what the fastest of a branch takes, which says what comes first of branches of one bound."""

    def least_bytes(self, branch: Branch) -> float:
        """Return bytes that all candidates of a branch need."""


@dataclass(eq=False)
class Search:
    """A search of a space, given its bounds, for the fastest way that fits in a device's memory.

    `leaves` yields the candidates of a branch that is worked out, `price` says what one takes, None where it cannot be.
    After `until` it goes on until a way fits if it `waits_for_fit`, else until one is priced. `projected` are ways,
    with the bound of their seconds and what came of them. Of all that were `considered`, so many are `impossible`, and
    so many `unfinished` for want of time, of which none takes less than `lower_s`; all others are above the best or too
    large by their bounds.
    """

    bounds: BranchBounds
    leaves: Callable[[Branch, float], Iterable[Leaf]]
    price: Callable[[Parallel], Projection | None]
    capacity: float
    until: float
    waits_for_fit: bool = True
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

        Nothing is looked at that does not take less than `below_s`.
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
            bound_s, _, _, item = heappop(self._waiting)
            if isinstance(item, Leaf):
                self._try(item)
            else:
                self._refine(item, bound_s)
        if self._best_s == float("inf") and self._smallest[1] is not None:
            self._try_smallest(self._smallest[1])

    @property
    def _is_over(self) -> bool:
        """True if it is late, and something is priced that may be enough."""
        enough = self._best_s < float("inf") if self.waits_for_fit else bool(self.projected)
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
        nbytes = self.bounds.least_bytes(branch)
        if nbytes > self.capacity:
            self._smallest = min(self._smallest, (nbytes, branch), key=lambda row: row[0])
        else:
            self._wait(max(bound_s, self.bounds.step_s(branch)), self.bounds.guess_s(branch), branch)

    def _wait(self, bound_s: float, guess_s: float, item: Branch | Leaf) -> None:
        heappush(self._waiting, (bound_s, guess_s, next(self._numbers), item))

    def _refine(self, branch: Branch, bound_s: float) -> None:
        """Bound a branch by one replica more, or by its own, and then its candidates each."""
        if self.bounds.step_s(branch) > bound_s or self.bounds.build(branch):
            self._add(branch, bound_s)
        elif not self.bounds.is_possible(branch):
            self.impossible += self.bounds.space.count(branch)
        else:
            for leaf in self.leaves(branch, self.capacity):
                if leaf.nbytes > self.capacity:
                    self._smallest = min(self._smallest, (leaf.nbytes, branch), key=lambda row: row[0])
                elif leaf.way not in self._tried and leaf.seconds < self._best_s:
                    self._wait(max(bound_s, leaf.seconds), leaf.guess_s, leaf)

    def _try(self, leaf: Leaf) -> bool:
        """Project a candidate; True if it fits."""
        self._tried.add(leaf.way)
        projection = self.price(leaf.way)
        if projection is None:
            self.impossible += 1
            return False
        self.projected[leaf.way] = leaf.seconds, projection
        if projection.fits:
            self._best_s = min(self._best_s, projection.seconds)
        return projection.fits

    def _try_by_hand(self, ways: Sequence[Parallel]) -> None:
        """Project ways in turn until one fits; where none may, that of least bytes."""
        may_fit = [way for way in ways if self.bounds.least_bytes(_branch_of(way)) <= self.capacity]
        for way in may_fit:
            if self._is_over and not self.waits_for_fit:
                return
            leaf = self._leaf(way)
            if leaf is not None and leaf.nbytes <= self.capacity and self._try(leaf):
                return
        smallest = min(ways, key=lambda way: self.bounds.least_bytes(_branch_of(way)), default=None)
        leaf = None if smallest is None else self._leaf(smallest)
        if leaf is not None and leaf.way not in self._tried:
            self._try(leaf)

    def _leaf(self, way: Parallel) -> Leaf | None:
        """Return a way with its bounds; None where it cannot be."""
        branch = _branch_of(way)
        while self.bounds.build(branch):
            pass
        if not self.bounds.is_possible(branch):
            return None
        return next(leaf for leaf in self.leaves(branch, self.capacity) if leaf.way == way)

    def _try_smallest(self, branch: Branch) -> None:
        """Project the way of a branch that needs least, to say how far it is from fitting."""
        while self.bounds.build(branch):
            pass
        if self.bounds.is_possible(branch):
            leaf = min(self.leaves(branch, self.capacity), key=lambda leaf: leaf.nbytes)
            if leaf.way not in self._tried:
                self._try(leaf)


def _branch_of(way: Parallel) -> Branch:
    within = Parallel(dp=way.ep, ep=way.ep, cp=way.cp, tp=way.tp, sp=way.sp)
    return Branch(within, way.pp, way.dp, way.micro_batch or 0, way.recompute)
