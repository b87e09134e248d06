"""Run a search: from a graph and options to the space of plans, the searchers' candidates and the record.

No factorization of the number of workers is best for every model, not even the finest. Each step of the recursion is
exact but the sequence of steps is not, so fewer and larger steps can find a better plan. Therefore all products of ways
are tried and the best plan is kept.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Hashable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import asdict, replace

from planner.errors import PlanError
from planner.graph.facts import no_data_parallelism
from planner.graph.ir import Graph
from planner.layout import Ways, eligible
from planner.plans.check import check_countable, check_plan, check_search, check_shares, check_workers
from planner.plans.plan import Plan
from planner.plans.records import Predicted, SearchRecord, Tried
from planner.search.alternatives import data_parallel
from planner.search.coarse import Coarsenings, Name
from planner.search.costs.tables import Tables
from planner.search.joint import joint
from planner.search.memory import DoesNotFitError, cheapest_fitting_plan
from planner.search.objectives import BYTES
from planner.search.objectives.timing import Time, time_objective
from planner.search.options import SearchOptions, rivals_of, ties_of
from planner.search.partial_sums import INFEASIBLE, may_be_partial, partial_sums_of
from planner.search.pins import PinError, pinned
from planner.search.solver.problem import Tuning
from planner.search.space import Candidate, Space
from tensor_partitioner.display import tracked


class SearchResult(Struct, frozen=True):
    """The result of a search for given ways: the winning candidate, and a record with lower bound and gap."""

    candidate: Candidate
    record: SearchRecord
    options: SearchOptions

    @property
    def cost(self) -> int | float:
        """Cost of the plan: bytes, or seconds under the objective time."""
        return self.record.cost

    @property
    def plan(self) -> Plan:
        """The plan, with the record."""
        return self.candidate.plan(self.options.seed, self.record)

    def check_cost(self, plan: Plan) -> None:
        """Raise PlanError if the plan does not cost what its searcher says, or costs less than the lower bound."""
        candidate, bound = self.candidate, self.candidate.outcome.lower_bound
        is_of_bytes = candidate.space.objective is BYTES
        cost = plan.total_bytes if is_of_bytes else candidate.space.cost(candidate.outcome.choice)
        if candidate.cost != cost:
            message = f"its choice costs {cost}, but it returned {candidate.cost!r}"
        elif bound is not None and bound > cost:
            message = f"its lower bound {bound} exceeds the cost {cost}"
        else:
            return
        raise PlanError(f"searcher {candidate.searcher}: {message}")

    def with_breakdown(self) -> SearchResult:
        """Return this result with where the winner's seconds go, under the objective time."""
        space, predicted = self.candidate.space, self.record.predicted
        if predicted is None or not isinstance(space.objective, Time):
            return self
        domains = [space.domain(v, (state,)) for v, state in enumerate(self.candidate.outcome.choice)]
        breakdown = asdict(space.objective.breakdown(space.coarse, domains, space.tables))
        return replace(self, record=replace(self.record, predicted=replace(predicted, **breakdown)))

    def with_lower_bound(self, space: Space, bound: int | None, searcher: str, *, is_of_space: bool) -> SearchResult:
        """Return this result with a lower bound, in the space's unit of cost, on all plans of that space.

        If the plan is not of that space, the bound does not apply to it and is recorded as a detail.
        """
        if bound is None:
            return self
        lower = bound * space.objective.tick_s if isinstance(space.objective, Time) else bound
        if is_of_space and lower <= self.cost:
            record = replace(self.record, lower_bound=lower, bound_by=searcher)
        else:
            record = replace(self.record, details={**self.record.details, "its_space_has_at_least": lower})
        return replace(self, record=record)


def search(graph: Graph, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Plan:
    """Return the plan of `search_result`, with its cost checked."""
    result = search_result(graph, options, coarsenings or Coarsenings(graph)).with_breakdown()
    plan = result.plan
    result.check_cost(plan)
    return plan


def search_result(
    graph: Graph, options: SearchOptions, coarsenings: Coarsenings, *, rivals: bool = True
) -> SearchResult:
    """Return the result of the named searcher for `options.ways`, or of a rival that costs less.

    An alternative requested by name is returned as it is. `joint` is never worse than the recursion with the
    recursion's own ties. `coarsenings` are those of the graph; pass them to search it again. Raises PlanError for
    invalid options, TopologyError for a machine that cannot run the plan, and DoesNotFitError if no plan found fits.
    """
    started = time.perf_counter()
    check_countable(graph, options.division)
    first = _candidate_of_space(space_of(graph, options, coarsenings), options)
    proved = first.is_proved and options.memory_bytes is None
    others = rivals_of(options, proved=proved, alternatives=rivals)
    candidates = {options.searcher: first, **_rival_candidates(first, others, coarsenings)}
    bound, memory = first.outcome.lower_bound, None
    if options.memory_bytes is not None and options.arena_of is not None:
        arenas, priced = options.arena_of, (options.searcher, *(["recursive"] if options.searcher == "joint" else []))
        fit = cheapest_fitting_plan(
            candidates, priced, lambda candidate: max(arenas(candidate.plan(options.seed))), options.memory_bytes
        )
        candidates, bound, memory = {fit.name: fit.candidate}, fit.lower_bound, fit.allowed
    winner = min(candidates, key=lambda name: candidates[name].cost)
    ties = [ties_of(searched, coarsenings) for searched in (options, {options.searcher: options, **others}[winner])]
    record = SearchRecord(
        searcher=options.searcher,
        placements=options.placement_set,
        objective=options.objective,
        machine="" if options.machine is None else options.machine.name,
        winner=winner,
        ties=ties[0].applied,
        pins=tuple(pin.asked for pin in options.all_pins),
        bytes={name: candidate.bytes_moved() for name, candidate in candidates.items()},
        predicted=_predicted_by_name(candidates, winner),
        memory=memory,
        details=dict(first.outcome.details),
        seconds=round(time.perf_counter() - started, 3),
    )
    result = SearchResult(candidates[winner], record, options)
    return result.with_lower_bound(first.space, bound, options.searcher, is_of_space=ties[0].are_among(ties[1]))


def _candidate_of_space(space: Space, options: SearchOptions) -> Candidate:
    """Return the named searcher's candidate; raise PlanError if its outcome is no choice of the space."""
    searcher, limits, name = options.searched_by.search, options.limits, options.searcher
    outcome = searcher(space, limits)
    try:
        space.check_choice(outcome)
    except PlanError as error:
        raise PlanError(f"searcher {name}: {error}") from error
    if outcome.cost >= INFEASIBLE:
        pins = " and ".join(map(str, options.all_pins))
        raise PinError(f"{pins}: a sum would have to stay partial, but no reader can carry its terms")
    return Candidate(name, space, outcome, lambda other: searcher(other, limits))


def _rival_candidates(
    first: Candidate, rivals: Mapping[str, SearchOptions], coarsenings: Coarsenings
) -> dict[str, Candidate]:
    """Return the candidates of the rivals that may cost less, each in its own space."""
    candidates, graph = {}, first.space.coarse.graph
    for name, options in tracked("alternatives", [*rivals.items()]):
        try:
            space = space_of(graph, options, coarsenings)
        except PinError:  # no plan of this rival satisfies the pins
            continue
        space = replace(space, objective=first.space.objective, tables=first.space.tables)
        if options.searched_by.may_cost_less(space, options.limits, first.cost):
            candidates[name] = _candidate_of_space(space, options)
    return candidates


def space_of(graph: Graph, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Space:
    """Return the space of plans that the options describe; raise PinError if none satisfies the pins."""
    coarsenings = coarsenings or Coarsenings(graph)
    placements, ties = options.placement_set, ties_of(options, coarsenings)
    partial, ways = placements.allows_partial, options.division
    untied = may_be_partial(coarsenings, ways) if partial and options.ties is None else frozenset[str]()
    kept = pinned(graph, options.all_pins, len(ways))
    marks = frozenset[tuple[Name, Hashable]]() if kept is None else frozenset(kept.of_name.items())
    coarse = coarsenings.of(ties, partial=partial, untied=untied, marks=marks)
    machine = options.machine
    objective = BYTES if machine is None else time_objective(machine, ways, coarse)
    partial_sums = partial_sums_of(coarse, ways, anything=partial)
    space = Space(
        coarse,
        ways,
        placements.allows_replicated,
        Tables(),
        objective,
        partial_sums=partial_sums,
        parallel=options.parallel,
    )
    return space.with_pins(kept)


def result_with_bound(result: SearchResult, coarsenings: Coarsenings) -> SearchResult:
    """Return a result with a lower bound for its ways, placements and coarse graph, if it has none yet.

    The bound is that of the joint search, whether or not its time runs out; it ignores a memory limit. It replaces the
    bound of an alternative, which covers only that alternative's choices.
    """
    options, tuning = result.options, result.options.limits.tuning
    sought = not options.searched_by.chooses_from_all or result.record.lower_bound is None
    if not sought or len(options.ways) > tuning.bound_steps[options.objective]:
        return result
    space = space_of(result.candidate.space.coarse.graph, options, coarsenings)
    outcome = joint(space, replace(options.limits, seconds=min(options.limits.seconds, tuning.bound_seconds)))
    return result.with_lower_bound(space, outcome.lower_bound, "joint", is_of_space=True)


def _predicted_by_name(candidates: Mapping[str, Candidate], winner: str) -> Predicted | None:
    """Return every candidate's seconds under the objective time; else None."""
    objective = candidates[winner].space.objective
    if not isinstance(objective, Time):
        return None
    seconds = {name: candidate.cost * objective.tick_s for name, candidate in candidates.items()}
    return Predicted(tick_s=objective.tick_s, candidates_s=seconds)


def best_plan(graph: Graph, workers: int, options: SearchOptions, coarsenings: Coarsenings | None = None) -> Plan:
    """Return the best plan over the factorizations of `workers`, or for `options.ways` if they are given.

    Of plans with equal cost, the first is returned. The plan's record holds the cost of each factorization, and the
    bytes that plain data parallelism would move. The plan is checked, unless nodes stand for others. Raises
    DoesNotFitError if the options limit memory and no plan fits, and whatever `search` raises. `coarsenings` are those
    of the graph; pass them to plan it again.
    """
    _check_shares(graph, workers, options)
    started, coarsenings = time.perf_counter(), coarsenings or Coarsenings(graph)
    if options.ways:
        result = search_result(graph, options, coarsenings)
    else:
        result = _best_over_factorisations(graph, workers, options, coarsenings)
    result = (result_with_bound(result, coarsenings) if options.bound else result).with_breakdown()
    record = replace(
        result.record,
        model=graph.name,
        data_parallel_bytes=_data_parallel_bytes(graph, result.options, coarsenings),
        seconds=round(time.perf_counter() - started, 3),
    )
    plan = replace(result, record=record).plan
    if not coarsenings.times:
        result.check_cost(plan)
        check_plan(plan)
        check_search(plan)
    return plan


def _check_shares(graph: Graph, workers: int, options: SearchOptions) -> None:
    """Raise PlanError if the shares do not match the workers, or leave some worker no part of the longest dimension."""
    if not options.shares:
        return
    check_shares(options.shares, workers)
    ways = options.division.factors or (workers,)
    longest = max((extent for tensor in graph.tensors.values() for extent in tensor.shape), default=0)
    uneven = Ways(ways, options.shares)
    for step in range(len(ways)):
        if eligible(longest, Ways(ways), step) and not eligible(longest, uneven, step):
            raise PlanError(
                f"shares: some worker would get no part even of the longest dimension, {longest}, at step {step + 1} "
                f"of ways {','.join(map(str, ways))}; make the shares less unequal"
            )


def _best_over_factorisations(
    graph: Graph, workers: int, options: SearchOptions, coarsenings: Coarsenings
) -> SearchResult:
    """Search every factorization and return the cheapest result.

    If only bytes count, rivals are searched for the finest factorization alone: with the others they move no less.
    """
    results, tried = list[SearchResult](), list[Tried]()
    failed, refused = list[DoesNotFitError](), list[PinError]()
    bytes_alone = options.objective == "bytes" and options.memory_bytes is None
    for number, ways in enumerate(tracked("searching", factorisations(workers))):
        try:
            result = search_result(
                graph, dataclasses.replace(options, ways=ways), coarsenings, rivals=not (number and bytes_alone)
            )
        except DoesNotFitError as error:
            failed.append(error)
            continue
        except PinError as error:
            refused.append(error)
            continue
        results.append(result)
        tried.append(Tried(ways=ways, cost=result.cost, seconds=result.record.seconds or 0.0))
    if not results and not failed:
        raise refused[0]
    if not results:
        raise DoesNotFitError(
            failed[0].limit, min(error.least for error in failed), min(error.floor for error in failed)
        )
    best = min(results, key=lambda result: result.cost)
    return replace(best, record=replace(best.record, factorisations=tuple(tried)))


def _data_parallel_bytes(graph: Graph, searched: SearchOptions, coarsenings: Coarsenings) -> int | None:
    """Return the bytes that data parallelism over as many workers would move; None without a batch to split."""
    ways = searched.division
    if no_data_parallelism(graph, ways.workers):
        return None
    one_step = Ways((ways.workers,), ways.shares) if ways else ways
    options = SearchOptions(one_step, "data-parallel", ties=ties_of(searched, coarsenings))
    return data_parallel(space_of(graph, options, coarsenings), options.limits).cost


def factorisations(workers: int) -> tuple[tuple[int, ...], ...]:
    """Return the factorizations to try: the prime factors first, then ever fewer and larger factors, largest first.

    The order of the factors is not varied: it changes bytes only for the recursion, and where extents do not divide or
    windows are cut. Raises PlanError for more workers than a plan may have.
    """
    check_workers(workers)
    primes = prime_factors(workers)
    if workers > Tuning().factored_workers:
        return tuple(dict.fromkeys((primes, (workers,))))
    return tuple(sorted(_products_of_factors(workers, workers), key=lambda ways: (-len(ways), ways)))


def _products_of_factors(number: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as a product of factors from 2 to `largest`, largest first."""
    if number == 1:
        yield ()
    for factor in range(min(number, largest), 1, -1):
        if number % factor == 0:
            yield from ((factor, *rest) for rest in _products_of_factors(number // factor, factor))


def prime_factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a number, largest first: the default ways."""
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    if number > 1:
        factors.append(number)
    return tuple(sorted(factors, reverse=True))
