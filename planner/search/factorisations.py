"""Factorizations of the number of workers: the products of ways to try in turn.

No factorization is best for every model, not even the finest. Each step of the recursion is exact but the sequence of
steps is not, so fewer and larger steps can find a better plan. Therefore all are tried and the best plan is kept.
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
from planner.plans.records import Tried
from planner.search.alternatives import data_parallel
from planner.search.coarse.coarsen import Coarsenings
from planner.search.memory import DoesNotFitError
from planner.search.options import SearchOptions, ties_of
from planner.search.pins import PinError
from planner.search.run import SearchResult, result_with_bound, search_result, space_of
from planner.search.solver.problem import Tuning
from tensor_partitioner.display import tracked


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
    record = with_fields(
        result.record,
        model=graph.name,
        data_parallel_bytes=_data_parallel_bytes(graph, result.options, coarsenings),
        seconds=round(time.perf_counter() - started, 3),
    )
    plan = with_fields(result, record=record).plan
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
            result = search_result(graph, replace(options, ways=ways), coarsenings, rivals=not (number and bytes_alone))
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
    return with_fields(best, record=with_fields(best.record, factorisations=tuple(tried)))


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
