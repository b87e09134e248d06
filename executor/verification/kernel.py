"""A kernel on whole operands: in double and single precision, and in place where the operator is element-wise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

import tdl
from executor.backend import asnumpy
from executor.cases import Array, Case, Draw
from executor.kernels import KernelCall, run
from executor.verification.check import ROUGH, Application, Check, compared
from executor.verification.parts import Subject, call_kernel
from planner.errors import GraphError
from planner.graph.infer import infer
from planner.graph.ir import Value

ALIASINGS = 24
"""How many ways of computing in place are tried per case."""


def shape_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks of shapes and extents that the case states, and of what a graph infers for the outputs."""
    case, outputs = application.subject.case, application.expected
    extents = {name: application.subject.extents.get(name) for name in case.extents}
    if extents:
        wrong = f"index variables have extents {extents}, expected {dict(case.extents)}"
        yield Check("extents", lambda: None if extents == case.extents else wrong)
    shapes = tuple(array.shape for array in outputs)
    if case.shapes is not None:
        message = f"outputs have shapes {shapes}, expected {case.shapes}"
        yield Check("shapes", lambda: None if shapes == case.shapes else message)
    if tdl.catalog.get(application.operator.name) is application.operator:
        yield Check("shapes in a graph", partial(_inferred, application))


def _inferred(application: Application) -> str | None:
    """Say how what a graph infers of the outputs differs from what they are."""
    kinds = [(operand.shape, str(operand.dtype)) for operand in application.subject.case.operands]
    try:
        inferred = infer(application.operator.name, kinds, application.subject.case.attributes)
    except GraphError as error:
        return f"no graph takes it: {error}"
    computed = tuple((array.shape, str(array.dtype)) for array in application.expected)
    return None if inferred == computed else f"a graph expects outputs {inferred}, the description computes {computed}"


def kernel_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks that a kernel computes on whole operands what the description says."""
    subject, expected = application.subject, application.expected
    yield compared("kernel", partial(run_whole, subject), expected)
    single = replace(subject, case=_single(subject.case))
    yield compared("kernel in single precision", partial(run_whole, single), expected, ROUGH)
    if subject.description.is_elementwise:
        for way in _aliasings(subject):
            name = f"in place of operands {','.join(map(str, way))}"
            yield compared(name, partial(_run_in_place, subject, way), expected)


NUMBERS = ("value", "factor", "min", "max")
"""Attributes that are numbers as elements of operands are."""


def whole_number_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks of a kernel on whole numbers and on truth values, where a graph takes them."""
    case, name = application.subject.case, application.operator.name
    if tdl.catalog.get(name) is not application.operator:
        return
    for dtype in ("int32", "bool"):
        whole = _converted(case, dtype)
        kinds = [(operand.shape, str(operand.dtype)) for operand in whole.operands]
        try:
            infer(name, kinds, whole.attributes)
        except GraphError:
            continue
        if kinds != [(operand.shape, str(operand.dtype)) for operand in case.operands]:
            description = application.operator.describe([len(shape) for shape, _ in kinds], whole.attributes)
            subject = replace(application.subject, case=whole, description=description)
            expected = description.evaluate(whole.operands, whole.attributes, subject.extents)
            yield compared(f"kernel of {dtype}", partial(run_whole, subject), expected)


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


def run_whole(subject: Subject) -> tuple[Array, ...]:
    """Run the kernel once, on everything; raises if it changes an operand."""
    inputs = _copies(subject)
    outputs = call_kernel(subject, subject.whole(), inputs, _origins(subject))
    for number, (array, operand) in enumerate(zip(inputs, subject.case.operands, strict=True)):
        if not np.array_equal(asnumpy(array), operand, equal_nan=True):
            raise ValueError(f"the kernel changed operand {number}")
    return outputs


def _copies(subject: Subject) -> tuple[Any, ...]:
    return tuple(subject.xp.asarray(operand.copy()) for operand in subject.case.operands)


def _origins(subject: Subject) -> tuple[tuple[int, ...], ...]:
    return tuple((0,) * operand.ndim for operand in subject.case.operands)


def _aliasings(subject: Subject) -> list[tuple[int, ...]]:
    """Return ways in which outputs may be the very memory of operands of their shape and dtype."""
    wanted = list(zip(subject.output_shapes(), subject.output_dtypes, strict=True))
    kinds = [(operand.shape, operand.dtype) for operand in subject.case.operands]
    ways = permutations(range(len(kinds)), len(wanted))
    return [way for way in ways if [kinds[number] for number in way] == wanted][:ALIASINGS]


def _run_in_place(subject: Subject, way: tuple[int, ...]) -> tuple[Array, ...]:
    """Run the whole operator with output number j in the memory of operand way[j]."""
    inputs = _copies(subject)
    outputs = tuple(inputs[number] for number in way)
    ranges = {variable: (0, extent) for variable, extent in subject.extents.items()}
    run(subject.kernel, KernelCall(subject.xp, inputs, outputs, subject.attributes(), ranges, _origins(subject)))
    return tuple(asnumpy(output) for output in outputs)


def _single(case: Case) -> Case:
    """Convert floating-point operands to single precision (exact for the values that cases draw)."""
    return replace(case, operands=tuple(a.astype(np.float32) if a.dtype.kind == "f" else a for a in case.operands))
