"""From coarse to fine: solve over groups of states, drop the groups that only worse choices have, divide the others.

Over groups every term costs the least that it costs over their members, so that the optimum is a lower bound, and so
is the least cost with a group for every choice with a member (Raphael 2001). The states that stand for groups make a
problem as small, and its optimum is a choice. What is left between the two is often little enough to be solved whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.search.minsum.choices import Choices, Left
from planner.search.minsum.deadends import DeadEnds
from planner.search.minsum.elimination import eliminate, solve
from planner.search.minsum.limits import NO_BOUND, Limits
from planner.search.minsum.lockstep import lockstep_order
from planner.search.minsum.merged import Lazy, Merged, Representatives, lazy
from planner.search.minsum.model import Kept, Model
from planner.search.minsum.problem import compacted

ENTRIES, ENTRIES_EACH_SECOND = 3e8, 3e7
"""Up to so many entries of all distinct terms together, and for each second of the limits, states are merged."""

OPERATIONS_EACH_SECOND = 3e8
"""Work that solving once may take for each second of the limits."""

PART = 0.5
"""Merging is worth its time if no more than this part of the states remains."""

CLOSE = 2e-3
"""The members that stand for the best groups are good enough a choice if no more than this part is open."""

QUICK_OPERATIONS = 1e9
"""Work for which what is left is solved whole, before it is divided in two first."""

LITTLE_OPERATIONS = 5e8
"""Work up to which looking for dead ends takes longer than it saves."""

NEAR_CHOICES = 1 << 22
"""Up to so many choices of a variable and its neighbours that are no worse than the best known are gone through."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A lower bound, and the states that a choice as good as the best known may have; None if all may."""

    lower: int = NO_BOUND
    kept: Kept | None = None


def coarse_to_fine(
    model: Model,
    representatives: Callable[[], Representatives],
    colours: Sequence[int],
    choices: Choices,
    limits: Limits,
) -> Narrowed:
    """Return what is proved, and offer choices; where the bound is their cost, they are the best.

    `representatives` says of every variable which states may stand for which; variables of one colour look alike, and
    keep the same states. Where it is not worth its time, nothing is tried.
    """
    groups = representatives()
    if sum(len(np.unique(of)) for of in groups) > PART * sum(model.sizes):
        return Narrowed()
    terms = model.terms(min(ENTRIES, ENTRIES_EACH_SECOND * limits.seconds))
    limits = replace(limits, operations=min(limits.operations, OPERATIONS_EACH_SECOND * limits.seconds))
    return _CoarseToFine(model, colours, choices, limits).run(terms, groups) if terms else Narrowed()


class _CoarseToFine:
    """What is left of a model, and a lower bound on its choices."""

    def __init__(self, model: Model, colours: Sequence[int], choices: Choices, limits: Limits) -> None:
        self._model, self._choices, self._limits = model, choices, limits
        self._left = Left(model.sizes, colours)
        self._lower = NO_BOUND

    def run(self, terms: Sequence[Lazy], groups: Representatives) -> Narrowed:
        """Return what is proved."""
        everything: Kept = [tuple(range(size)) for size in self._model.sizes]
        narrowed = self._over(Merged(terms, groups), everything, self._model.scale)
        if narrowed and not self._whole(QUICK_OPERATIONS):
            kept = self._left.alike()
            divided = [_halved(states, of) for of, states in zip(groups, kept, strict=True)]
            if self._over(Merged(lazy(self._model.exact(kept)), divided), kept, 1):
                self._whole(self._limits.operations)
        return Narrowed(self._lower, self._left.alike() if narrowed else None)

    def _over(self, merged: Merged, kept: Sequence[Sequence[int]], scale: int) -> bool:
        """Solve over groups of what is kept; return whether that was possible, and left something open."""
        problem, alive = DeadEnds(merged.tables).prune(merged.least)
        order = lockstep_order(problem, self._limits.operations)
        if not order.fits(self._limits.memory_bytes, self._limits.operations):
            return False
        elimination = eliminate(problem, order.variables, whole=True)
        states = elimination.complete({})
        least = problem.value(states)
        self._lower = max(self._lower, -(-least // scale))
        self._offer(merged, kept, alive, states)
        if self._choices.cost - self._lower > CLOSE * self._choices.cost:
            self._solve_standing(merged, kept)
        if self._lower >= self._choices.cost:
            return False
        below = self._choices.cost * scale + 1
        found = elimination.marginals(least, below, NEAR_CHOICES)
        if found is None:
            return False
        for v, (groups, bounds) in enumerate(zip(alive, found, strict=True)):
            costs = np.full(merged.least.sizes[v], least)
            costs[list(groups)] = bounds
            self._left.learn(v, kept[v], costs[merged.groups_of(v)])
        self._left.prune(range(len(self._model.sizes)), below)  # the best choice known stays
        return True

    def _solve_standing(self, merged: Merged, kept: Sequence[Sequence[int]]) -> None:
        """Offer the best choice of states that stand for groups."""
        problem, alive = DeadEnds(merged.tables).prune(merged.standing)
        order = lockstep_order(problem, self._limits.operations)
        if order.fits(self._limits.memory_bytes, self._limits.operations):
            self._offer(merged, kept, alive, solve(problem, order))

    def _offer(
        self, merged: Merged, kept: Sequence[Sequence[int]], alive: Sequence[Sequence[int]], chosen: Sequence[int]
    ) -> None:
        groups = [of[at] for of, at in zip(alive, chosen, strict=True)]
        self._choices.offer([of[at] for of, at in zip(kept, merged.standing_for(groups), strict=True)])

    def _whole(self, operations: float) -> bool:
        """Solve all that is left if that takes no more operations; return whether it did."""
        kept = self._left.alike()
        problem = self._model.exact(kept)
        alive: Sequence[Sequence[int]] = [range(size) for size in problem.sizes]
        if not lockstep_order(problem, LITTLE_OPERATIONS, tries=1).complete:
            problem, alive = DeadEnds(problem.tables).prune(problem)
        operations = min(operations, self._limits.operations)
        order = lockstep_order(problem, operations)
        if not order.fits(self._limits.memory_bytes, operations):
            return False
        states = solve(compacted(problem), order)
        self._choices.offer([of[at[s]] for of, at, s in zip(kept, alive, states, strict=True)])
        self._lower = self._choices.cost
        return True


def _halved(states: Sequence[int], representatives: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the groups of some states, by position: one that stands for itself alone, the others of a group together.

    `representatives` says who stands for each of all states.
    """
    first: dict[tuple[int, bool], int] = {}
    found = []
    for at, state in enumerate(states):
        of = int(representatives[state])
        found.append(first.setdefault((of, of == state), at))
    return np.array(found, dtype=np.intp)
