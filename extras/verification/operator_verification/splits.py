"""Run an operator split over workers, with the planner's own geometry, on every worker of a random strategy.

A strategy splits a variable at one step, in unequal shares, or at several steps, so that a worker's iterations are one
run or many. Needs, slices and origins come from `planner.program.calls`, which lowering uses. The workers' outputs must
make up the result of the whole.

What a description says about a strategy is also evaluated without a kernel, which could hide errors: the results of two
parts, concatenated or combined, must equal the unsplit result, and halos must cover what parts read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil, floor, prod
from typing import Any, cast

import numpy as np

import tdl
from executor.backend import asnumpy
from executor.cases import Array, Draw
from executor.values import indices
from operator_verification.application import EXACT, Application, Check, PartError, blank, compared, difference
from planner.errors import PlanError
from planner.layout import (
    EVERYWHERE,
    Production,
    Region,
    Signature,
    Strategy,
    Ways,
    eligible,
    local_shape,
    needed,
    production as produce,
)
from planner.program.calls import node_work
from planner.program.tasks import SlicedCall
from tdl import REDUCERS, Affine, Halo, Output
from tdl.index import Rational


def strategy_checks(application: Application, draw: Draw) -> Iterator[Check]:
    """Yield the checks of every strategy that the extents of this case permit."""
    for name in application.description.strategies:
        if application.extents[name] > 1:
            yield from meaning_checks(application, draw, name)


def meaning_checks(application: Application, draw: Draw, name: str) -> Iterator[Check]:
    """Yield the checks of one strategy, whose variable has an extent of 2 or more."""
    extent, strategy = application.extents[name], application.description.strategies[name]
    cut = draw.size(1, extent - 1)
    parts = ((0, cut), (cut, extent))
    if strategy.reducer is None:
        part = parts[draw.size(0, 1)]
        yield Check(f"meaning of {name}", partial(_part_differs, application, name, part))
    else:
        compute = partial(_reduce_parts, application, strategy, parts)
        yield compared(f"meaning of {name}", compute, application.expected)
    if strategy.halos:
        stop = draw.size(1, extent)
        yield Check(f"halo of {name}", partial(uncovered, application, strategy, (draw.size(0, stop - 1), stop)))


def _reduce_parts(application: Application, strategy: tdl.Strategy, parts: Sequence[tuple[int, int]]) -> list[Array]:
    """Evaluate the description in two parts, and combine them with the strategy's reducer."""
    results = [_evaluate(application, strategy.variable, part) for part in parts]
    combine = REDUCERS[cast(str, strategy.reducer)].numpy
    return [np.asarray(combine(*pair)) for pair in zip(*results, strict=True)]


def _part_differs(application: Application, variable: str, part: tuple[int, int]) -> str | None:
    """Evaluate the description on one part, and return how it differs from that part of the whole, or None."""
    expected = [
        _part_of(whole, application, variable, (output, part))
        for whole, output in zip(application.expected, application.description.outputs, strict=True)
    ]
    return difference(_evaluate(application, variable, part), expected, EXACT)


def _evaluate(application: Application, variable: str, part: tuple[int, int]) -> tuple[Array, ...]:
    case = application.case
    return application.description.evaluate(case.operands, case.attributes, application.extents, {variable: part})


def _part_of(whole: Array, application: Application, variable: str, place: tuple[Output, tuple[int, int]]) -> Array:
    """Cut along the axis of a variable. A mixed-radix dimension is split up and merged again."""
    output, (start, stop) = place
    names = [name for index in output.index for name in index.variables]
    if variable not in names:
        raise PartError(f"parts of {variable} should be concatenated, but no output dimension runs over it")
    sizes = dict(application.extents) | {variable: stop - start}
    apart = whole.reshape([application.extents[name] for name in names])
    cut = apart[tuple(slice(start, stop) if name == variable else slice(None) for name in names)]
    return cut.reshape([prod(sizes[name] for name in index.variables) for index in output.index])


def uncovered(application: Application, strategy: tdl.Strategy, part: tuple[int, int]) -> str | None:
    """Return which index a part reads beyond the halos of a strategy, or None."""
    for access in application.description.accesses:
        for dimension, index in enumerate(access.index):
            if not isinstance(index, Affine) or strategy.variable not in index.variables or index.is_plain:
                continue
            image = index.image({**application.whole, strategy.variable: part})
            factor = dict(index.terms)[strategy.variable]
            halos = [h for h in strategy.halos if (h.operand, h.dimension) == (access.operand, dimension)]
            reach = [_share(halo, factor, part, application) for halo in halos]
            if image[0] < image[1] and not any(low <= image[0] and image[1] <= high for low, high in reach):
                return f"{part} reads {image} of operand {access.operand}, dimension {dimension}; halos say {reach}"
    return None


def _share(halo: Halo, factor: Rational, part: tuple[int, int], application: Application) -> tuple[int, int]:
    """Return the part's own share of a dimension, widened by the halo."""
    below, above = halo.widths(application.extents)
    ends = [factor * end for end in part] if factor > 0 else [factor * (end - 1) for end in reversed(part)]
    return floor(ends[0]) - below, ceil(ends[1]) + above


WAYS = ((2,), (3,), (2, 2), (3, 2), (2, 3), (2, 2, 2))

AMONG_OTHERS = 2
"""Random strategies tried per variable, besides those that split it alone."""


def split_checks(application: Application, draw: Draw) -> Iterator[Check]:
    """Yield, for every strategy that the extents permit, the checks of random plans that split its variable."""
    for variable in application.description.strategies:
        if application.extents[variable] > 1:
            yield from variable_checks(application, draw, variable)


def variable_checks(application: Application, draw: Draw, variable: str) -> Iterator[Check]:
    """Yield the checks of plans that split a variable of extent 2 or more: alone, then together with others."""
    extent = application.extents[variable]
    workers = min(extent, draw.size(2, 3))
    unequal = Ways((workers,), draw.sizes(workers, 1, 3))
    plans: list[tuple[Strategy, Ways]] = [((variable,), unequal if eligible(extent, unequal, 0) else Ways((workers,)))]
    for _ in range(AMONG_OTHERS):
        ways = Ways(WAYS[draw.size(0, len(WAYS) - 1)])
        plans.append((_strategy(application, variable, ways, draw), ways))
    signature = _signature(application)
    for strategy, ways in plans:
        if variable in strategy and _has_slices(signature, strategy, ways):
            name = f"split {','.join(strategy)} on {'x'.join(map(str, ways))} workers"
            yield compared(name, partial(_run_split, application, signature, strategy, ways), application.expected)


def _signature(application: Application) -> Signature:
    shapes = tuple(operand.shape for operand in application.case.operands)
    description, extents = application.description, application.extents
    outputs = description.output_shapes(extents)
    return Signature(application.operator.name, application.case.attributes, shapes, description, extents, outputs)


def _strategy(application: Application, variable: str, ways: Ways, draw: Draw) -> Strategy:
    """Return a strategy that splits a variable at some steps, if its extent allows, and others elsewhere."""
    strategies = application.description.strategies
    reducers = {None, strategies[variable].reducer} if strategies[variable].reducer else {None}
    others = [EVERYWHERE] + [
        name
        for name, strategy in strategies.items()
        if name != variable and (strategy.reducer in reducers or reducers == {None})
    ]
    chosen: list[str] = []
    for step in range(len(ways)):
        other = others[draw.size(0, len(others) - 1)]
        wanted = variable if draw.size(0, 2) else other
        choice = wanted if wanted == EVERYWHERE or eligible(application.extents[wanted], ways, step) else EVERYWHERE
        kinds = {strategies[name].reducer for name in (*chosen, choice) if name != EVERYWHERE} - {None}
        chosen.append(choice if len(kinds) < 2 else EVERYWHERE)
    return tuple(chosen)


def _has_slices(signature: Signature, strategy: Strategy, ways: Ways) -> bool:
    """Return whether lowering accepts the strategy. A merged dimension may have no slices along it."""
    try:
        node_work(signature, strategy, ways, 0)
    except PlanError:
        return False
    return True


def _run_split(application: Application, signature: Signature, strategy: Strategy, ways: Ways) -> tuple[Array, ...]:
    """Run every worker's calls on its operands, and assemble the outputs."""
    productions = [produce(signature, number, strategy, ways) for number in range(len(signature.outputs))]
    results = [_run_worker(application, signature, strategy, (ways, worker)) for worker in range(ways.workers)]
    return tuple(
        _assemble(production, [result[number] for result in results], ways)
        for number, production in enumerate(productions)
    )


def _run_worker(
    application: Application, signature: Signature, strategy: Strategy, place: tuple[Ways, int]
) -> list[Array]:
    """Run one worker's calls; return its local outputs."""
    ways, worker = place
    held = [
        application.xp.asarray(operand[_where(needed(signature, number, strategy, ways)[worker])])
        for number, operand in enumerate(application.case.operands)
    ]
    outputs = [
        blank(application.xp, local_shape(produce(signature, number, strategy, ways).regions[worker]), dtype)
        for number, dtype in enumerate(application.output_dtypes)
    ]
    for call in node_work(signature, strategy, ways, worker).calls:
        _call(application, call, held, outputs)
    return [asnumpy(output) for output in outputs]


def _call(application: Application, call: SlicedCall, held: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Run one kernel call on slices of the local arrays, combining its results if the call says so."""
    targets = [outputs[number][(..., *cut)] for number, cut in call.outputs]
    results = targets
    if call.combine is not None:
        results = [blank(application.xp, target.shape, target.dtype) for target in targets]
    inputs = [held[number][(..., *cut)] for number, cut in call.inputs]
    application.call(inputs, results, call.ranges, call.origins)
    if call.combine is not None:
        for target, result in zip(targets, results, strict=True):
            merged = REDUCERS[call.combine].numpy(asnumpy(target), asnumpy(result))
            target[...] = application.xp.asarray(merged)


def _assemble(production: Production, parts: Sequence[Array], ways: Ways) -> Array:
    """Assemble one output from its parts: equal if replicated, combined if reduced, disjoint otherwise."""
    whole, counts = np.zeros(production.shape, parts[0].dtype), np.zeros(production.shape, int)
    for worker, part in enumerate(parts):
        twin, where = _twin(worker, production.same, ways), _where(production.regions[worker])
        if twin != worker:
            if not np.array_equal(part, parts[twin], equal_nan=True):
                raise PartError(f"workers {twin} and {worker} compute the same, but with different results")
            continue
        combines = production.reducer is not None and production.reducing and counts[where].any()
        whole[where] = REDUCERS[production.reducer or ""].numpy(whole[where], part) if combines else part
        counts[where] += 1
    expected = prod(ways[step] for step in production.reducing)
    if counts.min(initial=expected) < expected or counts.max(initial=expected) > expected:
        raise PartError(f"some elements are computed {counts.min()} to {counts.max()} times, expected {expected}")
    return whole


def _twin(worker: int, same: frozenset[int], ways: Ways) -> int:
    """Return the first worker with the same digits as this one at all steps but the given ones."""
    twin = 0
    for step, digit in enumerate(ways.digits(worker)):
        twin = twin * ways[step] + (0 if step in same else digit)
    return twin


def _where(region: Region) -> Any:
    """Return the index that selects a region of a whole array."""
    return np.ix_(*map(indices, region)) if region else ()
