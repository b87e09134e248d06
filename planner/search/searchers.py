"""The searchers: a record of each, and how to add one."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from planner.errors import PlanError
from planner.layout import PlacementSet
from planner.search import alternatives, joint
from planner.search.coarse.coarsen import Ties
from planner.search.solver.problem import Limits
from planner.search.space import Outcome, Space

OBJECTIVES = ("bytes", "time")
"""Quantities to minimize."""

REPLICATING = (PlacementSet.REPLICATED,)


class Searcher(Struct, frozen=True):
    """A searcher: `search` takes a space of plans and limits, and returns an outcome.

    `placements` are the sets it searches; for a smaller request it searches the smallest set that contains it. `ties`
    are its default coarsening rules; None selects rules by the graph. If it `chooses_from_all` plans of a space, its
    bound covers all of them and rivals are tried besides it; other searchers choose from some plans. `rival_under`
    lists the objectives under which the searcher is such a rival by default, in spaces in which it `may_cost_less` than
    a given cost.
    """

    name: str
    search: Callable[[Space, Limits], Outcome]
    summary: str
    placements: tuple[PlacementSet, ...] = tuple(PlacementSet)
    ties: Ties | None = None
    chooses_from_all: bool = False
    rival_under: tuple[str, ...] = ()
    may_cost_less: Callable[[Space, Limits, int], bool] = lambda space, limits, cost: True

    def placements_for(self, wanted: PlacementSet) -> PlacementSet:
        """Return the placements that it searches if these are requested.

        Raises PlanError if none of its sets contains them.
        """
        for placements in self.placements:
            if wanted.letters <= placements.letters:
                return placements
        able = ", ".join(name for name, other in SEARCHERS.items() if wanted in other.placements)
        raise PlanError(f"expected a searcher among {able} for placements {wanted}, found {self.name!r}")

    def largest_placements_within(self, allowed: PlacementSet) -> PlacementSet | None:
        """Return the largest of its sets that `allowed` contains; None if there is none."""
        within = [placements for placements in self.placements if placements.letters <= allowed.letters]
        return max(within, key=lambda placements: len(placements.letters), default=None)


def register(searcher: Searcher) -> Searcher:
    """Register a searcher under its name, for `plan --search` and, if it says so, as a rival.

    Raises PlanError if it is no valid searcher or its name is taken.
    """
    if not isinstance(searcher, Searcher):
        raise PlanError(f"expected a Searcher to register, found {searcher!r}")
    if not callable(searcher.search) or not all(isinstance(allowed, PlacementSet) for allowed in searcher.placements):
        raise PlanError(f"searcher {searcher.name}: expected a function and sets of placements, found {searcher!r}")
    if not isinstance(searcher.rival_under, tuple) or not {*searcher.rival_under} <= {*OBJECTIVES}:
        objectives = ", ".join(OBJECTIVES)
        raise PlanError(f"searcher {searcher.name}: expected a tuple of {objectives}, found {searcher.rival_under!r}")
    if searcher.name in SEARCHERS:
        raise PlanError(f"searcher {searcher.name}: this name is taken; choose one other than {', '.join(SEARCHERS)}")
    SEARCHERS[searcher.name] = searcher
    return searcher


SEARCHERS: dict[str, Searcher] = {
    searcher.name: searcher
    for searcher in (
        Searcher("recursive", joint.recursive, "one step after the other, each exact", chooses_from_all=True),
        Searcher(
            "joint",
            joint.joint,
            "all steps at once, with a lower bound",
            ties=Ties(elementwise=False, gradients=False, updates=False),
            chooses_from_all=True,
        ),
        Searcher("data-parallel", alternatives.data_parallel, "splits the batch", REPLICATING),
        Searcher("model-parallel", alternatives.model_parallel, "splits the weights", REPLICATING),
        Searcher(
            "hybrid",
            alternatives.hybrid,
            "data parallel across groups, model parallel within",
            REPLICATING,
            rival_under=("bytes",),  # results/plan_bytes: the only one that moves less than the recursion anywhere
            may_cost_less=alternatives.hybrid_may_cost_less,
        ),
    )
}
"""By name; `register` adds to it."""

NAMED = Searcher("named", alternatives.named, "follows --parallel", REPLICATING)
"""The searcher of named parallelism; only `--parallel` selects it."""
