"""The searchers: what each is, in one record, and how to add to them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from planner.errors import PlanError
from planner.layout import PlacementSet
from planner.search import alternatives, joint, recursive
from planner.search.coarse.coarsen import Ties
from planner.search.solver.limits import Limits
from planner.search.space import Outcome, Space

OBJECTIVES = ("bytes", "time")
"""What a plan may have little of."""

REPLICATING = (PlacementSet.REPLICATED,)


class Searcher(Struct, frozen=True):
    """A searcher: `search` takes a space of plans and limits, and returns an outcome.

    `placements` are the sets that it searches; asked for less, it searches the smallest that has it. `ties` are the
    coarsening rules that it is searched with by default, None for those that suit the graph. Where it
    `chooses_from_all` plans of a space, its bound is about them all and rivals are tried beside it; others choose from
    some. `rival_under` are the objectives under which it is such a rival, by default, in spaces in which it
    `may_cost_less` than a cost.
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
        """Return the set that it searches where one is asked for; a PlanError where it takes none with all of that."""
        for placements in self.placements:
            if wanted.letters <= placements.letters:
                return placements
        able = ", ".join(name for name, other in SEARCHERS.items() if wanted in other.placements)
        raise PlanError(f"expected a searcher among {able} for placements {wanted}, found {self.name!r}")

    def largest_placements_within(self, allowed: PlacementSet) -> PlacementSet | None:
        """Return the largest set that it searches of those that go no further than one; None if there is none."""
        within = [placements for placements in self.placements if placements.letters <= allowed.letters]
        return max(within, key=lambda placements: len(placements.letters), default=None)


def register(searcher: Searcher) -> Searcher:
    """Make a searcher known by its name, to `plan --search` and, where it says so, as a rival.

    Raises a PlanError for what is no searcher and where there is one of that name.
    """
    if not isinstance(searcher, Searcher):
        raise PlanError(f"expected a Searcher to register, found {searcher!r}")
    if not callable(searcher.search) or not all(isinstance(allowed, PlacementSet) for allowed in searcher.placements):
        raise PlanError(f"searcher {searcher.name}: expected a function and sets of placements, found {searcher!r}")
    if not isinstance(searcher.rival_under, tuple) or not {*searcher.rival_under} <= {*OBJECTIVES}:
        objectives = ", ".join(OBJECTIVES)
        raise PlanError(f"searcher {searcher.name}: expected a tuple of {objectives}, found {searcher.rival_under!r}")
    if searcher.name in SEARCHERS:
        raise PlanError(f"searcher {searcher.name}: expected a new name, found it among {', '.join(SEARCHERS)}")
    SEARCHERS[searcher.name] = searcher
    return searcher


SEARCHERS: dict[str, Searcher] = {
    searcher.name: searcher
    for searcher in (
        Searcher("recursive", recursive.recursive, "step by step, each exactly", chooses_from_all=True),
        Searcher(
            "joint",
            joint.joint,
            "all steps at once, with a lower bound",
            ties=Ties(elementwise=False, gradients=False, updates=False),
            chooses_from_all=True,
        ),
        Searcher("data-parallel", alternatives.data_parallel, "the batch split", REPLICATING),
        Searcher("model-parallel", alternatives.model_parallel, "the weights split", REPLICATING),
        Searcher(
            "hybrid",
            alternatives.hybrid,
            "data parallel across groups, model parallel within",
            REPLICATING,
            rival_under=("bytes",),  # results/default_plans: the only one that moves less than the recursion anywhere
            may_cost_less=alternatives.hybrid_may_cost_less,
        ),
    )
}
"""By name; `register` adds to it."""

NAMED = Searcher("named", alternatives.named, "what --parallel says", REPLICATING)
"""The searcher of named parallelism; only `--parallel` has it."""
