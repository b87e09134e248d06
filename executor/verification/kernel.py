"""A kernel on whole operands: in double and single precision, and in place where the operator is element-wise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np

import tdl
from executor.backend import asnumpy
from executor.cases import Array, Case, Draw
from executor.verification.application import ROUGH, Application, Check, compared, run_whole
from planner.errors import GraphError
from planner.graph.infer import infer
from planner.graph.ir import Value

ALIASINGS = 24
"""How many ways of computing in place are tried per case."""


def shape_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks of shapes and extents that the case states, and of what a graph infers for the outputs."""
    case = application.case
    extents = {name: application.extents.get(name) for name in case.extents}
    if extents:
        wrong = f"index variables have extents {extents}, expected {dict(case.extents)}"
        yield Check("extents", lambda: None if extents == case.extents else wrong)
    shapes = tuple(array.shape for array in application.expected)
    if case.shapes is not None:
        message = f"outputs have shapes {shapes}, expected {case.shapes}"
        yield Check("shapes", lambda: None if shapes == case.shapes else message)
    if _is_of_catalog(application):
        yield Check("shapes in a graph", partial(_inferred, application))


def _is_of_catalog(application: Application) -> bool:
    """True if graphs have the very operator."""
    return tdl.catalog.get(application.operator.name) is application.operator


def _inferred(application: Application) -> str | None:
    """Say how what a graph infers of the outputs differs from what they are."""
    try:
        inferred = infer(application.operator.name, _kinds(application.case.operands), application.case.attributes)
    except GraphError as error:
        return f"no graph takes it: {error}"
    computed = tuple(_kinds(application.expected))
    return None if inferred == computed else f"a graph expects outputs {inferred}, the description computes {computed}"


def _kinds(arrays: tuple[Array, ...]) -> list[tuple[tuple[int, ...], str]]:
    return [(array.shape, str(array.dtype)) for array in arrays]


def kernel_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks that a kernel computes on whole operands what the description says."""
    expected = application.expected
    yield compared("kernel", partial(run_whole, application), expected)
    single = replace(application, case=_single(application.case))
    yield compared("kernel in single precision", partial(run_whole, single), expected, ROUGH)
    if application.description.is_elementwise:
        for way in _aliasings(application):
            name = f"in place of operands {','.join(map(str, way))}"
            yield compared(name, partial(_run_in_place, application, way), expected)


NUMBERS = ("value", "factor", "min", "max")
"""Attributes that are numbers as elements of operands are."""


def whole_number_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks of a kernel on whole numbers and on truth values, where a graph takes them."""
    if not _is_of_catalog(application):
        return
    for dtype in ("int32", "bool"):
        converted = replace(application, case=_converted(application.case, dtype))
        kinds = _kinds(converted.case.operands)
        try:
            infer(application.operator.name, kinds, converted.case.attributes)
        except GraphError:
            continue
        if kinds != _kinds(application.case.operands):
            yield compared(f"kernel of {dtype}", partial(run_whole, converted), converted.expected)


def _converted(case: Case, dtype: str) -> Case:
    """Return the case with operands of fractions, and numbers that go with them, in another dtype."""

    def converted(operand: Array) -> Array:
        if operand.dtype.kind != "f":
            return operand
        whole = np.rint(np.nan_to_num(8 * operand, posinf=9, neginf=-9)).astype(np.int32)
        return operand > 0 if dtype == "bool" else whole

    attributes = {name: _whole(value) if name in NUMBERS else value for name, value in case.attributes.items()}
    return replace(case, operands=tuple(map(converted, case.operands)), attributes=attributes)


def _whole(value: Value) -> Value:
    return int(4 * value) if isinstance(value, float) and math.isfinite(value) else value


def _aliasings(application: Application) -> list[tuple[int, ...]]:
    """Return ways in which outputs may be the very memory of operands of their shape and dtype."""
    wanted, kinds = _kinds(application.expected), _kinds(application.case.operands)
    ways = permutations(range(len(kinds)), len(wanted))
    return [way for way in ways if [kinds[number] for number in way] == wanted][:ALIASINGS]


def _run_in_place(application: Application, way: tuple[int, ...]) -> tuple[Array, ...]:
    """Run the whole operator with output number j in the memory of operand way[j]."""
    inputs = [application.xp.asarray(operand.copy()) for operand in application.case.operands]
    outputs = [inputs[number] for number in way]
    application.call(inputs, outputs, application.whole, application.origins)
    return tuple(map(asnumpy, outputs))


def _single(case: Case) -> Case:
    """Convert floating-point operands to single precision (exact for the values that cases draw)."""
    return replace(case, operands=tuple(a.astype(np.float32) if a.dtype.kind == "f" else a for a in case.operands))
