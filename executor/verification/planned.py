"""Run an operator as the executor would: the planner's own geometry, on every worker of a random strategy.

A strategy splits a variable at one step or at several, so that a worker's iterations are one run or many; needs,
slices and origins are those of `planner.program.calls`, which lowering uses. The workers' outputs must make up the
result of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from executor.backend import asnumpy
from executor.cases import Array, Draw
from executor.kernels import KernelCall, run
from executor.values import indices
from executor.verification.check import Application, Check, compared
from executor.verification.parts import Assembled, PartError, Subject, blank
from planner.errors import PlanError
from planner.layout import EVERYWHERE, Production, Region, Signature, Strategy, Ways, eligible, local_shape, needed
from planner.layout import production as produce
from planner.program.calls import node_work
from planner.program.tasks import SlicedCall
from tdl import REDUCERS

WAYS = ((2,), (3,), (2, 2), (3, 2), (2, 3), (2, 2, 2))


def planned_checks(application: Application, draw: Draw) -> Iterator[Check]:
    """Yield for every strategy variable the check of one random plan that splits it."""
    subject = application.subject
    shapes = tuple(operand.shape for operand in subject.case.operands)
    outputs = subject.description.output_shapes(subject.extents)
    signature = Signature(
        application.operator.name, subject.case.attributes, shapes, subject.description, subject.extents, outputs
    )
    for variable in subject.description.strategies:
        ways = Ways(WAYS[draw.size(0, len(WAYS) - 1)])
        strategy = _strategy(subject, variable, ways, draw)
        if variable in strategy and _has_slices(signature, strategy, ways):
            name = f"planned {','.join(strategy)} on {'x'.join(map(str, ways))} workers"
            yield compared(name, partial(run_planned, subject, signature, strategy, ways), application.expected)


def _strategy(subject: Subject, variable: str, ways: Ways, draw: Draw) -> Strategy:
    """Return a strategy that splits a variable at some steps, where its extent allows, and others elsewhere."""
    strategies = subject.description.strategies
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
        choice = wanted if wanted == EVERYWHERE or eligible(subject.extents[wanted], ways, step) else EVERYWHERE
        kinds = {strategies[name].reducer for name in (*chosen, choice) if name != EVERYWHERE} - {None}
        chosen.append(choice if len(kinds) < 2 else EVERYWHERE)
    return tuple(chosen)


def _has_slices(signature: Signature, strategy: Strategy, ways: Ways) -> bool:
    """True if lowering accepts the strategy; a merged dimension may have no slices along it."""
    try:
        node_work(signature, strategy, ways, 0)
    except PlanError:
        return False
    return True


def run_planned(subject: Subject, signature: Signature, strategy: Strategy, ways: Ways) -> tuple[Array, ...]:
    """Run every worker's calls on what it needs, and put what all produced together."""
    workers = range(ways.workers)
    productions = [produce(signature, number, strategy, ways) for number in range(len(signature.outputs))]
    results = [_run_worker(subject, signature, strategy, (ways, worker)) for worker in workers]
    return tuple(
        _assemble(production, [result[number] for result in results], ways)
        for number, production in enumerate(productions)
    )


def _run_worker(subject: Subject, signature: Signature, strategy: Strategy, place: tuple[Ways, int]) -> list[Array]:
    """Run one worker's calls; return its local outputs."""
    ways, worker = place
    held = [
        subject.xp.asarray(operand[_where(needed(signature, number, strategy, ways)[worker])])
        for number, operand in enumerate(subject.case.operands)
    ]
    outputs = [
        blank(subject.xp, local_shape(produce(signature, number, strategy, ways).regions[worker]), dtype)
        for number, dtype in enumerate(subject.output_dtypes)
    ]
    for call in node_work(signature, strategy, ways, worker).calls:
        _call(subject, call, held, outputs)
    return [asnumpy(output) for output in outputs]


def _call(subject: Subject, call: SlicedCall, held: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Make one kernel call on slices of the local arrays, combining it with what is there where the call says so."""
    targets = tuple(outputs[number][(..., *cut)] for number, cut in call.outputs)
    results = targets
    if call.combine is not None:
        results = tuple(blank(subject.xp, target.shape, target.dtype) for target in targets)
    inputs = tuple(held[number][(..., *cut)] for number, cut in call.inputs)
    run(subject.kernel, KernelCall(subject.xp, inputs, results, subject.attributes(), call.ranges, call.origins))
    if call.combine is not None:
        for target, result in zip(targets, results, strict=True):
            merged = REDUCERS[call.combine].numpy(asnumpy(target), asnumpy(result))
            target[...] = subject.xp.asarray(merged)


def _assemble(production: Production, parts: Sequence[Array], ways: Ways) -> Array:
    """Put one output's parts into the whole: equal where computed by all, combined where reduced, else disjoint."""
    whole = Assembled(np.zeros(production.shape, parts[0].dtype), np.zeros(production.shape, int))
    for worker, part in enumerate(parts):
        twin = _twin(worker, production.same, ways)
        if twin == worker:
            whole.put(_where(production.regions[worker]), part, production.reducer if production.reducing else None)
        elif not np.array_equal(part, parts[twin], equal_nan=True):
            raise PartError(f"workers {twin} and {worker} compute the same, but their results differ")
    expected, counts = prod(ways[step] for step in production.reducing), whole.counts
    if counts.min(initial=expected) < expected or counts.max(initial=expected) > expected:
        raise PartError(f"some elements are computed {counts.min()} to {counts.max()} times, expected {expected}")
    return whole.values


def _twin(worker: int, same: frozenset[int], ways: Ways) -> int:
    """Return the first worker that has this one's digits at all but the given steps."""
    twin = 0
    for step, digit in enumerate(ways.digits(worker)):
        twin = twin * ways[step] + (0 if step in same else digit)
    return twin


def _where(region: Region) -> Any:
    """Return what selects a region of a whole array."""
    return np.ix_(*map(indices, region)) if region else ()
