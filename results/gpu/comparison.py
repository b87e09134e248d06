"""How far a kernel is from double precision, element by element.

An element's error is measured relative to 1 + |x| + s, where x is its value in double precision. Of an operator that
adds up products of its operands, s is the root of the sum of their squares, which is about what rounding changes: so an
error that large elements leave in the sums of small ones is seen. Of any other, s is the largest |x|. What is beyond a
dtype's range is not compared in sums, whose terms may have left it, and counts as the dtype's largest value elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from operator_verification.application import Application, blank

import tdl
from executor.backend import asnumpy, on_one_stream
from executor.cases import Array, Case
from executor.check import TOLERANCES
from executor.kernels import KERNELS, LIBRARIES, KernelCall

DTYPES = {"float64": "float64", "float32": "float32", "tf32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
"""What operands are in, by precision; TF32 is how products of single precision are computed."""

TOLERANCE = {**TOLERANCES, "tf32": TOLERANCES["float16"]}
"""The largest error that is right, by precision. TF32 has as many digits as float16."""

DOUBLE = TOLERANCE["float64"]

Evaluate = Callable[[Case], Sequence[Array]]


def rounded(case: Case) -> Case:
    """Return the case with operands that every precision has: so one reference serves all."""
    return converted(converted(case, ml_dtypes.bfloat16), np.float64)


def converted(case: Case, dtype: Any) -> Case:
    """Return the case with its floating operands in a dtype."""
    with np.errstate(over="ignore"):
        return replace(case, operands=tuple(a.astype(dtype) if a.dtype.kind in "fV" else a for a in case.operands))


def computed(library: str, operator: str, case: Case, xp: ModuleType) -> list[Array]:
    """Run a library's kernel on a whole case; return its outputs in host memory."""
    application = Application(tdl.catalog[operator], KERNELS[operator], case, xp=xp)
    inputs = tuple(xp.asarray(operand.copy()) for operand in case.operands)
    shapes = application.description.output_shapes(application.extents)
    outputs = tuple(blank(xp, *kind) for kind in zip(shapes, application.output_dtypes, strict=True))
    attributes = {**case.attributes, "extents": application.extents}
    call = KernelCall(xp, inputs, outputs, attributes, application.whole, tuple(application.origins))
    with np.errstate(all="ignore"), on_one_stream(xp):  # what is no number is a result like others
        LIBRARIES[library].bind(operator, call)()
    return [asnumpy(output) for output in outputs]


@dataclass(frozen=True, slots=True)
class Reference:
    """What a case's outputs are in double precision, and what rounding may change in each element beside itself."""

    expected: Sequence[Array]
    sizes: Sequence[Array | float]

    def error(self, outputs: Sequence[Array]) -> float:
        """Return the largest error of outputs; infinite where whole numbers, infinities or numbers are others.

        What is no number in double precision may be anything.
        """
        return max(map(_error, outputs, self.expected, self.sizes))


def reference(operator: str, case: Case, evaluate: Evaluate) -> Reference:
    """Evaluate a case in double precision."""
    expected = evaluate(case)
    if adds_up(operator, case):
        squares = evaluate(replace(case, operands=tuple(a * a if a.dtype.kind == "f" else a for a in case.operands)))
        return Reference(expected, [np.sqrt(np.abs(square)) for square in squares])
    return Reference(expected, [_largest(np.asarray(output, np.float64)) for output in expected])


def adds_up(operator: str, case: Case) -> bool:
    """True if an operator adds up products of its floating operands."""
    description = tdl.catalog[operator].describe(tuple(a.ndim for a in case.operands), case.attributes)
    floating = [place for place, operand in enumerate(case.operands) if operand.dtype.kind == "f"]
    sums = any(strategy.reducer == "Sum" for strategy in description.strategies.values())
    return sums and bool(floating) and all(description.linear(frozenset({place})) for place in floating)


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))


def _error(output: Array, expected: Array, size: Array | float) -> float:
    if output.dtype.kind in "iub":
        return 0.0 if np.array_equal(output, expected) else math.inf
    most = largest(output.dtype)
    actual, exact = output.astype(np.float64), np.asarray(expected, np.float64)
    infinite = np.isinf(exact)
    within = np.isfinite(exact) if isinstance(size, float) else np.abs(exact) + size <= most
    if (actual[infinite] != exact[infinite]).any() or np.isnan(actual[within]).any():
        return math.inf
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(np.clip(actual, -most, most) - np.clip(exact, -most, most))
        return float((gap / (1 + np.abs(exact) + size)).max(initial=0.0, where=within))


def largest(dtype: Any) -> float:
    """Return the largest number of a dtype."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
