"""Which factors to split the workers by: ways to write their number as a product, tried in turn.

No factorisation is the best for every model, even the finest: the recursion's steps are each exact, but not their
sequence, so fewer and larger steps can find a better plan. All are tried, then, and the best is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from planner.graph.ir import Graph
from planner.plans.plan import Plan, check_workers
from planner.search import SearchOptions, search
from planner.search.coarse.coarsen import Coarsenings
from planner.search.memory import DoesNotFitError

MOST_WORKERS_FACTORED = 16
"""Up to so many workers every factorisation is tried, beyond only the prime factors: there are too many others."""


def best_factors(graph: Graph, workers: int, options: SearchOptions) -> Plan:
    """Return the best plan over the factorisations of a number of workers; of equals the first.

    `options.ways` is not used. `Plan.search["factors"]` says what each factorisation came to and took, and `seconds`
    is what they took together. Raises a DoesNotFitError where the options limit memory and none of them fits.
    """
    started = time.perf_counter()
    best, tried, failed, coarsenings = None, [], [], Coarsenings(graph)
    for ways in factorisations(workers):
        try:
            plan = search(graph, replace(options, ways=ways), coarsenings)
        except DoesNotFitError as error:
            failed.append(error)
            continue
        tried.append({"ways": list(ways), "cost": cost_of(plan), "seconds": plan.search["seconds"]})
        if best is None or cost_of(plan) < cost_of(best):
            best = plan
    if best is None:
        raise DoesNotFitError(
            failed[0].limit, min(error.least for error in failed), min(error.floor for error in failed)
        )
    seconds = round(time.perf_counter() - started, 3)
    return replace(best, search={**best.search, "seconds": seconds, "factors": tried})


def cost_of(plan: Plan) -> int | float:
    """Return what the search predicted for its plan: bytes, or seconds where it searched for little time."""
    costs: dict[str, int | float] = plan.search.get("predicted_s", plan.search["bytes"])
    return costs[plan.search["winner"]]


def factorisations(workers: int) -> tuple[tuple[int, ...], ...]:
    """Return the factorisations to try: the prime factors first, then ever fewer and larger ones, each largest first.

    The order of the factors is not varied: it changes bytes only where extents do not divide or windows are cut, and
    for the recursion. Raises a PlanError for more workers than a plan may have.
    """
    check_workers(workers)
    primes = prime_factors(workers)
    if workers > MOST_WORKERS_FACTORED:
        return (primes,)
    return tuple(sorted(_partitions(workers, workers), key=lambda ways: (-len(ways), ways)))


def _partitions(number: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as a product of factors from 2, largest first, none above `largest`."""
    if number == 1:
        yield ()
    for factor in range(min(number, largest), 1, -1):
        if number % factor == 0:
            yield from ((factor, *rest) for rest in _partitions(number // factor, factor))


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
