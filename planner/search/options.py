"""The searchers, how to add one, and the options of a search, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from msgspec import Struct

import topologies
from planner.errors import PlanError
from planner.layout import PlacementSet, Ways
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.search import alternatives, joint
from planner.search.coarse import Coarsenings, Ties
from planner.search.pins import Degree, Pin, check_degrees, read_forbids, read_pins
from planner.search.solver.problem import Limits
from planner.search.space import Outcome, Space
from tensor_partitioner.display import Shown, nearest

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


# An option of planning, defined once: its command-line flag, its help, and how to read its value.


RULES = tuple(rule.name for rule in fields(Ties))
RULES_TEXT = f"all, none or rules among {', '.join(RULES)}"


@dataclass(frozen=True, slots=True)
class Option:
    """An option as commands show it; `read` converts command-line text or a Python value, and raises PlanError.

    `least` applies to whole numbers, `choices` to names. A `repeated` option is read from a list.
    """

    flag: str
    help: str
    read: Callable[[Any], Any] = lambda value: value
    metavar: str | None = None
    least: int | None = None
    choices: Sequence[str] = ()
    default: Any = None
    repeated: bool = False


def described(flag: str, meaning: str, **details: Any) -> dict[str, Option]:
    """Return the metadata of a record's field that is an option; `details` are fields of `Option`."""
    return {"option": Option(flag, meaning, **details)}


def options_of(record: type) -> dict[str, Option]:
    """Return the options among a record's fields, by name, with the fields' defaults."""
    declared = (field for field in fields(record) if "option" in field.metadata)
    return {field.name: replace(field.metadata["option"], default=field.default) for field in declared}


def whole_numbers(least: int, example: str) -> Callable[[Any], Any]:
    """Return a reader of whole numbers from `least`, as in `4,2`; it converts lists to tuples."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return tuple(value) if isinstance(value, list) else value
        parts = value.split(",")
        if not all(re.fullmatch(r" *[0-9]{1,9} *", part) and int(part) >= least for part in parts):
            raise PlanError(f"expected whole numbers of at least {least}, such as {example}, found {value!r}")
        return tuple(map(int, parts))

    return read


def read_rules(value: Any) -> tuple[str, ...]:
    """Return the coarsening rules named by `elementwise,updates`, a list of names, `all` or `none`."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if names in (["all"], ["none"]):
        return RULES if names == ["all"] else ()
    if not isinstance(names, list | tuple) or not all(name in RULES for name in names):
        raise PlanError(f"expected {RULES_TEXT}, found {value!r}")
    return tuple(names)


def read_ties(value: Any) -> Ties | None:
    """Return the Ties to apply, as `read_rules` reads them; None means the default."""
    return value if value is None or isinstance(value, Ties) else Ties.only(read_rules(value))


# Options of a search, checked.


PLACEMENTS = tuple(PlacementSet)

WAYS = "Split factors, outermost first, as in 4,2.  [default: the best]"
TIES = f"Coarsening rules to apply: {RULES_TEXT}.  [default: by searcher and the graph's size]"
UNTIE = "Coarsening rules to leave out.  [default: none]"
PARALLEL = (
    "Parallelism by name instead of a search: degrees tp=, cp=, dp=, pp= (innermost first) and ep= (a divisor of dp); "
    "sp for sequence parallelism; zero=1, 2 or 3; micro-batch= samples; schedule=; recompute=.  [default: none]"
)
PIN = "Required placement of tensors or nodes, by glob, as in 'l*.mlp.up.w=S0'; '|' separates alternatives. Repeatable."
FORBID = "Forbidden placement, written as for --pin. Repeatable."
SHARES = "Relative share of each worker, as in 2,2,1,1.  [default: equal shares]"


@dataclass(frozen=True, slots=True)
class SearchOptions(Shown):
    """Options of a search.

    Fields with metadata are keyword arguments of `planner.plan` and flags of the commands. Under placements "S,R,P" a
    tensor may be left as partial sums if some reader can carry them on (`partial_sums`). Data, model and hybrid
    parallelism and the one weird trick replicate: if "S" is requested they search "S,R", and the plan's report says so.
    `machine` is required by the objective "time". `memory_bytes` limits every worker's arena; `arena_of` gives the
    sizes of the arenas (`planner.program.lower`). `bound` requests a lower bound even if the searcher has none. `pins`
    and `forbids` restrict the plans.
    """

    ways: tuple[int, ...] | Ways = field(
        default=(), metadata=described("--ways", WAYS, read=whole_numbers(2, "4,2"), metavar="K1,K2,...")
    )
    searcher: str = field(default="recursive", metadata=described("--search", f"Algorithm: {', '.join(SEARCHERS)}."))
    placements: PlacementSet | str = field(
        default=PlacementSet.REPLICATED,
        metadata=described("--placements", f"Allowed placements: {'; '.join(PLACEMENTS)}."),
    )
    ties: Ties | None = field(default=None, metadata=described("--ties", TIES, read=read_ties, metavar="RULE,..."))
    limits: Limits = field(default_factory=Limits, repr=False)
    seed: int = field(default=0, metadata=described("--seed", "Seed of weights and random data.", least=0))
    untie: tuple[str, ...] = field(
        default=(), metadata=described("--untie", UNTIE, read=read_rules, metavar="RULE,...")
    )
    objective: str = field(
        default="bytes", metadata=described("--objective", "Quantity to minimize.", choices=OBJECTIVES)
    )
    machine: topologies.Machine | None = None
    memory_bytes: int | None = None
    arena_of: Callable[[Plan], Sequence[int]] | None = None
    bound: bool = False
    shares: tuple[int, ...] = field(
        default=(), metadata=described("--shares", SHARES, read=whole_numbers(1, "2,2,1,1"), metavar="S1,S2,...")
    )
    parallel: Parallel | None = field(
        default=None, metadata=described("--parallel", PARALLEL, read=Parallel.read, metavar="tp=K,dp=K,...")
    )
    pins: tuple[Pin | Degree, ...] = field(
        default=(), metadata=described("--pin", PIN, read=read_pins, metavar="GLOB=PLACEMENT", repeated=True)
    )
    forbids: tuple[Pin, ...] = field(
        default=(), metadata=described("--forbid", FORBID, read=read_forbids, metavar="GLOB=PLACEMENT", repeated=True)
    )

    def __post_init__(self) -> None:
        """Replace `placements` by those that the searcher searches; raise PlanError for options that make no sense."""
        if self.parallel is not None:
            self._take_parallel(self.parallel)
        elif not isinstance(self.searcher, str) or self.searcher not in SEARCHERS:
            hint = nearest(str(self.searcher), SEARCHERS)
            raise PlanError(f"expected a searcher among {', '.join(SEARCHERS)}, found {self.searcher!r}{hint}")
        if self.objective not in OBJECTIVES:
            raise PlanError(f"expected an objective among {', '.join(OBJECTIVES)}, found {self.objective!r}")
        if self.memory_bytes is not None and self.arena_of is None:
            raise PlanError("memory_bytes: needs arena_of, which returns the sizes of the arenas")
        if (self.objective == "time") != (self.machine is not None):
            if self.machine is None:
                raise PlanError("objective time: name the machine (--topo MACHINE)")
            raise PlanError(
                f"objective bytes takes no machine, found {self.machine.name}; to minimize time on it, use "
                "--objective time"
            )
        if type(self.seed) is not int or self.seed < 0:
            raise PlanError(f"expected a seed of at least 0, found {self.seed!r}")
        if (placements := PlacementSet.parse(self.placements)) is None:
            raise PlanError(f"expected placements {' or '.join(PLACEMENTS)}, found {self.placements!r}")
        if not isinstance(self.ways, tuple | Ways) or any(type(way) is not int or way < 2 for way in self.ways):
            raise PlanError(f"expected ways of at least 2 each, found {self.ways!r}")
        check_degrees(self.pins, self.parallel)
        object.__setattr__(self, "placements", self.searched_by.placements_for(placements))

    @property
    def searched_by(self) -> Searcher:
        """The searcher's record."""
        return SEARCHERS[self.searcher] if self.parallel is None else NAMED

    def _take_parallel(self, parallel: Parallel) -> None:
        """Take the ways and the searcher from a named parallelism, which leaves nothing to search."""
        if self.objective != "bytes" or self.shares or (self.ways and self.ways != parallel.ways):
            raise PlanError(f"parallel {parallel}: cannot be combined with ways, shares or objective time")
        if self.searcher not in (NAMED.name, "recursive"):
            raise PlanError(f"parallel {parallel}: cannot be combined with searcher {self.searcher!r}")
        object.__setattr__(self, "ways", parallel.ways)
        object.__setattr__(self, "searcher", NAMED.name)

    @property
    def placement_set(self) -> PlacementSet:
        """The placements that are searched."""
        return PlacementSet(self.placements)

    @property
    def all_pins(self) -> tuple[Pin, ...]:
        """Pins of tensors and nodes, including those that forbid."""
        return (*(pin for pin in self.pins if isinstance(pin, Pin)), *self.forbids)

    @property
    def division(self) -> Ways:
        """The ways with the workers' shares."""
        return self.ways if isinstance(self.ways, Ways) else Ways(self.ways, self.shares)


def ties_of(options: SearchOptions, coarsenings: Coarsenings) -> Ties:
    """Return the coarsening rules that apply to the graph of `coarsenings`."""
    ties = default_ties(options, coarsenings) if options.ties is None else options.ties
    return replace(ties, **dict.fromkeys(options.untie, False))


def default_ties(options: SearchOptions, coarsenings: Coarsenings) -> Ties:
    """Return the coarsening rules to apply if none are requested.

    Ties of element-wise operators cost bytes, most under "S,R" and for recurrent models. `joint` does without them, and
    so does every other searcher of a graph that then has few variables. Otherwise gradients at least are not tied to
    the forward pass. `updates` costs bytes only under "S,R".
    """
    if (ties := options.searched_by.ties) is not None:
        return ties
    untied = Ties(elementwise=False, gradients=False, updates=not options.placement_set.allows_replicated)
    few = coarsenings.variable_count(untied) <= options.limits.tuning.untied_variables
    return untied if few else replace(untied, elementwise=True)


def rivals_of(options: SearchOptions, *, proved: bool, alternatives: bool = True) -> dict[str, SearchOptions]:
    """Return the searches to run besides that of `options`, by name; `proved`: its plan is optimal.

    `joint` is compared with the recursion with the recursion's own ties, and with the recursion's rivals. If memory is
    limited, the same searcher with fewer placements reaches plans that fit and that prices do not reach.
    """
    rivals, own = dict[str, SearchOptions](), options
    if options.searcher == "joint" and not (proved and options.ties is None and not options.untie):
        own = rivals["recursive"] = replace(options, searcher="recursive", ties=None, untie=())
    elif proved or not options.searched_by.chooses_from_all:
        return {}
    for fewer in PlacementSet if options.memory_bytes is not None else ():
        if fewer.letters < options.placement_set.letters:
            rivals[fewer] = replace(own, placements=fewer)
    if alternatives and len(options.ways) <= options.limits.tuning.rival_steps:
        for name, searcher in SEARCHERS.items():
            placements = searcher.largest_placements_within(options.placement_set)
            if options.objective in searcher.rival_under and placements is not None:
                rivals[name] = replace(own, searcher=name, placements=placements)
    return rivals
