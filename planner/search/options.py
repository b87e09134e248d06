"""What to search for: the options of a search, checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from planner.errors import PlanError
from planner.layout import Ways
from planner.plans.plan import Plan
from planner.search.alternatives import IMPLIED
from planner.search.coarse.coarsen import Coarsenings, Ties
from planner.search.option import RULES_TEXT, described, read_rules, read_ties, whole_numbers
from planner.search.searchers import FREE, MOST_STEPS, SEARCHERS, WITH_PARTIAL
from planner.search.solver.limits import Limits
from tensor_partitioner.display import Shown
from topologies import Machine

PLACEMENTS = ("S", "S,R", "S,R,P")
DEFAULT_PLACEMENTS = "S,R"

OBJECTIVES = ("bytes", "time")

WAYS = "Factors to split by, outermost first.  [default: the best]"
TIES = f"Coarsening rules to apply: {RULES_TEXT}.  [default: by searcher and the graph's size]"
UNTIE = "Coarsening rules to do without.  [default: none]"
SHARES = "What share of everything each worker is to have, as in 2,2,1,1.  [default: equal shares]"

FEW_VARIABLES = 2000
"""Up to so many variables, identical layers not merged, a graph is searched without element-wise ties: the recursion
takes about a second then."""


@dataclass(frozen=True, slots=True)
class SearchOptions(Shown):
    """What to search for.

    Fields with metadata are what `planner.plan` takes besides a graph, and commands by their flags. Under
    "S,R,P" a tensor may be left as partial sums where some reader can carry them on (`partial_sums`). Data, model and
    hybrid parallelism and the one weird trick replicate: they search "S,R" where "S" is asked for, and the plan's
    report says so. `machine` is what the objective "time" is about; `memory_bytes` is what every worker's arena must
    fit in; `arena_of` gives their sizes (`planner.program.lower`), with what else is to be in there. `bound` asks for a
    lower bound even where the searcher knows none.
    """

    ways: tuple[int, ...] | Ways = field(
        default=(), metadata=described("--ways", WAYS, read=whole_numbers(2, "4,2"), metavar="K1,K2,...")
    )
    searcher: str = field(default="recursive", metadata=described("--search", f"One of {', '.join(SEARCHERS)}."))
    placements: str = field(
        default=DEFAULT_PLACEMENTS,
        metadata=described("--placements", f"What may be chosen: {'; '.join(PLACEMENTS)}."),
    )
    ties: Ties | None = field(default=None, metadata=described("--ties", TIES, read=read_ties, metavar="RULE,..."))
    limits: Limits = field(default_factory=Limits)
    seed: int = field(default=0, metadata=described("--seed", "Of weights and random data.", least=0))
    untie: tuple[str, ...] = field(
        default=(), metadata=described("--untie", UNTIE, read=read_rules, metavar="RULE,...")
    )
    objective: str = field(default="bytes", metadata=described("--objective", "Of which little.", choices=OBJECTIVES))
    machine: Machine | None = None
    memory_bytes: int | None = None
    arena_of: Callable[[Plan], Sequence[int]] | None = None
    bound: bool = False
    shares: tuple[int, ...] = field(
        default=(), metadata=described("--shares", SHARES, read=whole_numbers(1, "2,2,1,1"), metavar="S1,S2,...")
    )

    @property
    def division(self) -> Ways:
        """The ways with the workers' shares."""
        return self.ways if isinstance(self.ways, Ways) else Ways(self.ways, self.shares)


def ties_of(options: SearchOptions, coarsenings: Coarsenings) -> Ties:
    """Return the coarsening rules that apply to a graph, whose coarsenings these are.

    Sums stay tied where terms may be kept, and where time is counted: an addition that is saved takes none.
    """
    ties = default_ties(options, coarsenings) if options.ties is None else options.ties
    ties = replace(ties, **dict.fromkeys(options.untie, False))
    sums = "P" in placements_of(options) or options.objective == "time"
    return replace(ties, accumulation=ties.accumulation or sums)


def default_ties(options: SearchOptions, coarsenings: Coarsenings) -> Ties:
    """Return the coarsening rules to apply where none are asked for.

    Ties of element-wise operators cost bytes, most under "S,R" and for recurrent models. `joint` goes without, as does
    every other searcher of a graph that then has few variables; elsewhere gradients at least are not tied to the
    forward pass. `updates` costs bytes under "S,R" only.
    """
    untied = Ties(elementwise=False, gradients=False, updates="R" not in placements_of(options))
    if options.searcher == "joint":
        return replace(untied, updates=False)
    return untied if coarsenings.variable_count(untied) <= FEW_VARIABLES else replace(untied, elementwise=True)


def placements_of(options: SearchOptions) -> str:
    """Return the placement set: what is asked for, and what the searcher implies; a PlanError for bad options."""
    if not isinstance(options.searcher, str) or options.searcher not in SEARCHERS:
        raise PlanError(f"expected a searcher among {', '.join(SEARCHERS)}, found {options.searcher!r}")
    if options.objective not in OBJECTIVES:
        raise PlanError(f"expected an objective among {', '.join(OBJECTIVES)}, found {options.objective!r}")
    if options.memory_bytes is not None and options.arena_of is None:
        raise PlanError("memory_bytes: expected arena_of with it, which says how large arenas are, found none")
    if (options.objective == "time") != (options.machine is not None):
        machine = "none" if options.machine is None else options.machine.name
        raise PlanError(f"objective {options.objective}: expected a machine with time, and only there, found {machine}")
    if type(options.seed) is not int or options.seed < 0:
        raise PlanError(f"expected a seed from 0, found {options.seed!r}")
    wanted = {part.strip() for part in options.placements.split(",")} if isinstance(options.placements, str) else None
    if wanted not in ({"S"}, {"S", "R"}, {"S", "R", "P"}):
        raise PlanError(f"expected placements {' or '.join(PLACEMENTS)}, found {options.placements!r}")
    if "P" in wanted and options.searcher not in WITH_PARTIAL:
        raise PlanError(
            f"expected a searcher among {', '.join(WITH_PARTIAL)} for placements S,R,P, found {options.searcher!r}"
        )
    ways = options.ways
    if not isinstance(ways, tuple | Ways) or any(type(way) is not int or way < 2 for way in ways):
        raise PlanError(f"expected ways of at least 2 each, found {options.ways!r}")
    if "P" in wanted:
        return "S,R,P"
    return "S,R" if "R" in wanted else IMPLIED.get(options.searcher, "S")


def rivals_of(
    options: SearchOptions, coarsenings: Coarsenings, alternatives: Collection[str], *, proved: bool
) -> dict[str, SearchOptions]:
    """Return what is searched for besides, by the name that the record gives it; `proved`: the plan is the least.

    "S" and "S,R" are the same searcher with fewer placements, which is no restriction of the recursion: fewer choices
    can lead it further. "tied" is the recursion with all ties, which it is mostly, but not always, better without.
    `joint` is compared with the recursion that has its own ties, and with what that is compared with. Without
    convolutions the one weird trick is model parallelism.
    """
    own, found = options, {}
    if options.searcher == "joint" and not (proved and options.ties is None and not options.untie):
        own = found["recursive"] = replace(options, searcher="recursive", ties=None, untie=())
    elif proved or options.searcher not in FREE:
        return {}
    placements = placements_of(options)
    if "P" in placements:
        found["S,R"] = replace(options, placements="S,R")
        own = replace(own, placements="S,R")
    if len(options.ways) > MOST_STEPS:
        return found
    if "R" in placements:
        found["S"] = replace(own, placements="S")
    elif own.ties is None and not ties_of(own, coarsenings).elementwise:
        found["tied"] = replace(own, ties=Ties())
    for name in alternatives:
        is_another = name != "one-weird-trick" or "convolution" in coarsenings.operator_classes
        if name in SEARCHERS and is_another and ("R" in placements or name not in IMPLIED):
            found[name] = replace(own, searcher=name)
    return found
