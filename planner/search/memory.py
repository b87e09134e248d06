"""Memory as a constraint: the cheapest plan whose arena fits on every worker.

A price is put on the bytes stored at an iteration's peak, and raised until the plan fits (Lagrangian relaxation); then
only some tensors are priced. Prices only propose plans: the static memory plan decides whether a plan fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isqrt, prod

from msgspec import Struct, field
from msgspec.structs import replace

from planner.errors import PlanError
from planner.layout import Shard
from planner.plans.records import Allowed
from planner.search.objectives import PricedStorage, least_bytes_stored, resident_item_bytes_by_variable
from planner.search.partial_sums import MOST_PENALTIES
from planner.search.space import Candidate, Outcome, Space, State

PREFIXES = {"K": 1, "M": 2, "G": 3, "T": 4}
UNITS = {"": 1, "B": 1} | {f"{prefix}B": 1000**power for prefix, power in PREFIXES.items()}
UNITS |= {f"{prefix}iB": 1024**power for prefix, power in PREFIXES.items()}

FINENESS = 10
"""Prices are multiples of 2^-10 of a unit of cost, per byte stored on some worker."""

MOST = 1 << 54
"""Upper limit of the sum of all prices, so that sums and bounds of costs fit in 64 bits."""

HIGH = 16
"""A price, in units of cost per byte stored, that should be reachable even if prices become coarser for it."""

MOST_SEARCHES = 10
CLOSE = 1.1
"""Two prices within this ratio, one that fits and one that does not, are not refined further."""

SURELY = 64
"""Factor on the price at which a plan fits, for the searches that price only some tensors."""


class DoesNotFitError(PlanError):
    """No plan that fits was found.

    `limit` is the memory limit, `least` the smallest arena found, `floor` a lower bound on the arena of any plan, all
    in bytes.
    """

    def __init__(self, limit: int, least: int, floor: int) -> None:
        super().__init__(
            f"memory: no plan fits in {limit} bytes on every worker: the smallest plan found takes {least}, "
            f"{least - limit} more; every plan takes at least {floor}"
        )
        self.limit = limit
        self.least = least
        self.floor = floor


def parse_memory(text: str) -> int:
    """Return the bytes that a text such as 4096, 500MB or 11GiB means; raise PlanError if it is malformed."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) *([A-Za-z]*)", text.strip())
    nbytes = int(float(match[1]) * UNITS[match[2]]) if match and match[2] in UNITS else 0
    if nbytes < 1:
        raise PlanError(f"expected bytes as in 11GiB, 500MB or 4096 ({', '.join(filter(None, UNITS))}), found {text!r}")
    return nbytes


class Fitted(Struct, frozen=True):
    """The cheapest plan that fits, its name, and a lower bound on the cost of every plan that fits, if known."""

    name: str
    candidate: Candidate
    lower_bound: int | None
    allowed: Allowed


class _Search(Struct):
    """State of the search: arenas by plan, the cheapest plan that fits, a lower bound for the first space.

    `name` and `free` belong to the search that is repeated with memory priced. `fitting` is the lowest price on all
    tensors at which its plan fits.
    """

    arena_of: Callable[[Candidate], int]
    limit: int
    name: str
    free: Candidate
    lower: int | None
    bounded: Space
    items: Mapping[int, int] = field(default_factory=dict)
    sizes: dict[tuple[Space, tuple[State, ...]], int] = field(default_factory=dict)
    best: tuple[str, Candidate] | None = None
    fitting: PricedStorage | None = None
    searches: int = 0

    @property
    def space(self) -> Space:
        """The space that is searched."""
        return self.free.space

    def search_with_memory_priced(self, name: str, free: Candidate) -> None:
        """Repeat the search that found `free`, with memory priced."""
        self.name, self.free, self.fitting = name, free, None
        self.items = resident_item_bytes_by_variable(self.space.coarse)
        self.search_with_all_tensors_priced(max(1, free.outcome.cost))
        self.search_with_some_tensors_priced()

    def offer_plan_found(self, name: str, candidate: Candidate) -> bool:
        """Keep a plan that fits if it costs less than the best so far; return True if it fits."""
        fits = self.largest_arena_bytes(candidate) <= self.limit
        if fits and (self.best is None or candidate.outcome.cost < self.best[1].outcome.cost):
            self.best = (name, candidate)
        return fits

    def largest_arena_bytes(self, candidate: Candidate) -> int:
        """Return the bytes of a plan's largest arena."""
        key = candidate.space, candidate.outcome.choice
        if key not in self.sizes:
            self.sizes[key] = self.arena_of(candidate)
        return self.sizes[key]

    def lower_bound_of_arena_bytes(self) -> int:
        """Return a lower bound on the bytes of any plan's largest arena."""
        return -(-self._least_stored_bytes(self.items) // prod(self.space.ways))

    def _least_stored_bytes(self, items: Mapping[int, int]) -> int:
        """Return the fewest bytes that all workers together store, with every tensor split wherever possible."""
        domains = {v: self.space.domain(v, (self._most_split_state(v),)) for v in items}
        return least_bytes_stored(items, domains, self.space.tables)

    def _most_split_state(self, v: int) -> State:
        options = self.space.options_at_every_step(v)
        return tuple(next((option for option in some if isinstance(option, Shard)), some[0]) for some in options)

    def search_with_all_tensors_priced(self, cheapest: int) -> None:
        """Search with all stored tensors priced: raise the price until a plan fits, then refine it."""
        shift, highest = self._cost_shift_and_highest_price(cheapest)
        low, high = 0, None
        price = min(highest, max(1, (cheapest << shift) // (8 * prod(self.space.ways) * self.limit)))
        if self.lower_bound_of_arena_bytes() > self.limit:  # nothing fits, but the error says by how little
            price = highest
        for _ in range(MOST_SEARCHES):
            priced = PricedStorage(self.space.objective, self.space.coarse, shift, price, self.items)
            if self._plan_at_prices_fits(priced):
                high, self.fitting = price, replace(priced, price=min(highest, SURELY * price))
            elif price == highest:
                return
            else:
                low = price
            if high is not None and high <= max(low + 1, low * CLOSE):
                return
            price = min(highest, price * 8) if high is None else max(low + 1, isqrt(max(1, low) * high))

    def search_with_some_tensors_priced(self) -> None:
        """Search with a high price on only some tensors: as few as possible of the largest, then of the smallest."""
        if self.fitting is None or (self.best is not None and self.best[1].outcome.cost == self.lower):
            return
        nbytes = {v: self._least_stored_bytes({v: item}) for v, item in self.items.items()}
        descending = sorted(nbytes, key=lambda v: -nbytes[v])
        for order in (descending, descending[::-1]):
            few, many = 0, len(order)
            while many - few > 1:
                some = (few + many) // 2
                priced = replace(self.fitting, items={v: self.items[v] for v in order[:some]})
                few, many = (few, some) if self._plan_at_prices_fits(priced) else (some, many)

    def _cost_shift_and_highest_price(self, cheapest: int) -> tuple[int, int]:
        """Return the bits to scale costs by, and the highest price per byte stored, so that sums stay in range."""
        coarse, most = self.space.coarse, MOST
        if self.space.partial_sums is not None:
            most = MOST_PENALTIES // (4 * max(1, len(coarse.factors)))
        whole = sum(tensor.nbytes for tensor in coarse.graph.tensors.values())
        highest = max(1, most // max(1, whole * prod(self.space.ways)))
        in_range = most.bit_length() - 4 - cheapest.bit_length()
        return max(0, min(FINENESS, in_range, highest.bit_length() - HIGH.bit_length())), highest

    def _plan_at_prices_fits(self, objective: PricedStorage) -> bool:
        """Search at these prices; return True if the plan fits."""
        self.searches += 1
        outcome = self.free.search(replace(self.space, objective=objective))
        bounds = self.space is self.bounded and len(objective.items) == len(self.items)
        if outcome.lower_bound is not None and bounds:
            allowed = objective.price * prod(self.space.ways) * self.limit
            self.lower = max(-(-(outcome.lower_bound - allowed) >> objective.shift), self.lower or 0)
        unpriced = Outcome(outcome.choice, self.space.cost(outcome.choice), None, outcome.details)
        return self.offer_plan_found(self.name, replace(self.free, outcome=unpriced))


def cheapest_fitting_plan(
    candidates: Mapping[str, Candidate], again: Sequence[str], arena_of: Callable[[Candidate], int], limit: int
) -> Fitted:
    """Return the cheapest plan found whose arena fits in `limit` bytes on every worker.

    `candidates` are the results of searches without the constraint. Those named in `again` are repeated with memory
    priced; the bound applies to the space of the first. `arena_of` gives the largest arena of a plan. Raises
    DoesNotFitError if no plan fits.
    """
    first = candidates[again[0]]
    search = _Search(arena_of, limit, again[0], first, first.outcome.lower_bound, first.space)
    for name, candidate in candidates.items():
        search.offer_plan_found(name, candidate)
    cheapest = min(candidates.values(), key=lambda candidate: candidate.outcome.cost)
    for name in again:
        if search.best is not None and search.best[1].outcome.cost in (cheapest.outcome.cost, search.lower):
            break
        search.search_with_memory_priced(name, candidates[name])
    if search.best is None:
        raise DoesNotFitError(limit, min(search.sizes.values()), search.lower_bound_of_arena_bytes())
    name, best = search.best
    allowed = Allowed(
        limit_bytes=limit,
        arena_bytes=search.largest_arena_bytes(best),
        unlimited_arena_bytes=search.largest_arena_bytes(cheapest),
        searches=search.searches,
    )
    lower = None if search.lower is None else min(search.lower, best.outcome.cost)
    return Fitted(name, best, lower, allowed)
