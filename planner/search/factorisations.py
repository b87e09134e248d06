"""Into which factors to split the workers: ways to write their number as a product, tried in turn.

No factorisation is the best for every model, even the finest: the recursion's steps are each exact, but not their
sequence, so fewer and larger steps can find a better plan. All are tried, then, and the best is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from msgspec.structs import replace as with_fields

from planner.errors import PlanError
from planner.graph.facts import no_data_parallelism
from planner.graph.ir import Graph
from planner.layout import Ways, eligible
from planner.plans.check import check_plan, check_search, check_shares, check_workers
from planner.plans.plan import Plan
from planner.plans.search_record import Tried
from planner.search.coarse.coarsen import Coarsenings
from planner.search.memory import DoesNotFitError
from planner.search.options import SearchOptions
from planner.search.run import plan_with_bound, search, space_of
from planner.search.searchers import ALTERNATIVES, SEARCHERS, UNIFORM
from tensor_partitioner.display.progress import tracked

MOST_WORKERS_FACTORED = 16
"""Up to so many workers every factorisation is tried; beyond, only the prime factors and none: there are too many."""


def best_plan(graph: Graph, workers: int, options: SearchOptions) -> Plan:
    """Return the best plan for a number of workers: over its factorisations, or by `options.ways` where they are given.

    Of equals it is the first. The record says what each factorisation came to, and what plain data parallelism would
    move. What is returned has been checked. Raises a DoesNotFitError where the options limit memory and nothing fits,
    and what `search` raises.
    """
    _check_shares(graph, workers, options)
    started, coarsenings = time.perf_counter(), Coarsenings(graph)
    plan = (
        search(graph, options, coarsenings)
        if options.ways
        else _best_plan_over_factorisations(graph, workers, options, coarsenings)
    )
    plan = plan_with_bound(plan, options, coarsenings) if options.bound else plan
    record = with_fields(plan.search, model=graph.name, data_parallel_bytes=data_parallel_bytes(plan, coarsenings))
    plan = replace(plan, search=with_fields(record, seconds=round(time.perf_counter() - started, 3)))
    check_plan(plan)
    check_search(plan)
    return plan


def _check_shares(graph: Graph, workers: int, options: SearchOptions) -> None:
    """Raise a PlanError where the shares do not suit the workers, or where the longest dimension has none for some."""
    if not options.shares:
        return
    check_shares(options.shares, workers)
    ways = options.division.factors or (workers,)
    longest = max((extent for tensor in graph.tensors.values() for extent in tensor.shape), default=0)
    uneven = Ways(ways, options.shares)
    for step in range(len(ways)):
        if eligible(longest, Ways(ways), step) and not eligible(longest, uneven, step):
            raise PlanError(
                f"shares: expected shares that leave no worker without a part, found that step {step + 1} of ways "
                f"{','.join(map(str, ways))} makes an empty one even of the longest dimension, of {longest}"
            )


def _best_plan_over_factorisations(
    graph: Graph, workers: int, options: SearchOptions, coarsenings: Coarsenings
) -> Plan:
    """Search every factorisation; what an alternative finds for the first, the finest, is not worse than for others.

    Those that do the same at every step are covered by the last, a single step, where bytes alone count.
    """
    plans, tried, failed = [], [], []
    bytes_alone = options.objective == "bytes" and options.memory_bytes is None
    for number, ways in enumerate(tracked("searching", factorisations(workers))):
        again = () if number else [name for name in ALTERNATIVES if name not in UNIFORM]
        try:
            plan = search(graph, replace(options, ways=ways), coarsenings, again if bytes_alone else ALTERNATIVES)
        except DoesNotFitError as error:
            failed.append(error)
            continue
        plans.append(plan)
        tried.append(Tried(ways=ways, cost=plan.search.cost, seconds=plan.search.seconds or 0.0))
    if not plans:
        raise DoesNotFitError(
            failed[0].limit, min(error.least for error in failed), min(error.floor for error in failed)
        )
    best = min(plans, key=lambda plan: plan.search.cost)
    return replace(best, search=with_fields(best.search, factorisations=tuple(tried)))


def data_parallel_bytes(plan: Plan, coarsenings: Coarsenings) -> int | None:
    """Return what data parallelism over the plan's workers would move; None where there is no batch to split."""
    ways = Ways((plan.workers,), plan.ways.shares) if plan.ways else plan.ways
    if no_data_parallelism(plan.graph, plan.workers):
        return None
    options = SearchOptions(ways, "data-parallel")
    return SEARCHERS["data-parallel"](space_of(plan.graph, options, coarsenings), options.limits).cost


def factorisations(workers: int) -> tuple[tuple[int, ...], ...]:
    """Return the factorisations to try: the prime factors first, then ever fewer and larger ones, each largest first.

    The order of the factors is not varied: it changes bytes only where extents do not divide or windows are cut, and
    for the recursion. Raises a PlanError for more workers than a plan may have.
    """
    check_workers(workers)
    primes = prime_factors(workers)
    if workers > MOST_WORKERS_FACTORED:
        return tuple(dict.fromkeys((primes, (workers,))))
    return tuple(sorted(_products_of_factors(workers, workers), key=lambda ways: (-len(ways), ways)))


def _products_of_factors(number: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as a product of factors from 2, largest first, none above `largest`."""
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
