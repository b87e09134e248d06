"""Compare some operators' kernels with double precision; print the worst of each as JSON.

Arguments behind a run's: `exact` or `tf32`; `small` and names of operators, or `real` and that of a family.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from executor.backend import allow_tf32, array_module, on_one_stream
from executor.cluster import single_rank
from executor.kernels import LIBRARIES as LOADED
from results.gpu import real_sizes, small_cases
from results.gpu.comparison import DTYPES, computed, converted
from results.gpu.operators import EXACT, TF32
from results.gpu.settings import LIBRARIES, Run, this_run
from results.gpu.small_cases import INFINITE, Sample

Row = dict[str, Any]

NO_NUMBER = {
    ("torch", "gelu"): ("numpy",),
    ("torch", "batch_norm_backward"): ("numpy", "cupy"),
    ("arrays", "remainder"): ("cupy",),
}
"""Kernels that are not compared where values are infinite, by array module: PyTorch's gelu of infinity is no number on
a host; gradients of batch norm have the weight as a factor of terms of both signs; CuPy's remainder has its divisor as
a factor of zero."""

BY_AUTOGRAD = "convolution_backward_weight"
"""The operator whose rows tell the error of PyTorch's own gradient, too: cuDNN's algorithms of it are imprecise."""


def libraries(operator: str) -> list[str]:
    """Return the libraries with a kernel of their own."""
    return ["arrays", *(name for name, kernels in LOADED.items() if operator in kernels.native)]


def checked(operator: str, kind: str, sample: Sample, precisions: tuple[str, ...], xp: ModuleType) -> Iterator[Row]:
    """Yield the error of each library in each precision; None and the reason where there is none."""
    for precision in precisions:
        if not sample.is_of(precision):
            continue
        case = converted(sample.case, DTYPES[precision])
        for library in libraries(operator):
            if sample.style == INFINITE and xp.__name__ in NO_NUMBER.get((library, operator), ()):
                continue
            row: Row = {"operator": operator, "kind": kind, "library": library, "precision": precision}
            row["values"] = sample.style
            try:
                error = sample.reference.error(computed(library, operator, case, xp))
            except Exception as failure:  # whatever a kernel or its device raises is what this is to find
                yield row | {"error": None, "reason": f"{type(failure).__name__}: {failure}"[:300]}
                continue
            wrong = {} if math.isfinite(error) else {"reason": "whole numbers, infinities or numbers are others"}
            row |= {"error": error if math.isfinite(error) else None} | wrong
            if (library, operator, kind) == ("torch", BY_AUTOGRAD, "real") and case.operands[0].dtype == np.float32:
                with on_one_stream(xp):
                    gradient = import_module("results.gpu.eager").gradient_of_weight(case, xp)
                row["eager"] = sample.reference.error([gradient])
            yield row


def worst(rows: Iterator[Row]) -> list[Row]:
    """Return of every library and precision the row with the largest error, or that without one."""
    largest: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = row["operator"], row["library"], row["precision"]
        if key not in largest or _size(row) > _size(largest[key]):
            largest[key] = row
    return list(largest.values())


def _size(row: Row) -> float:
    return math.inf if row["error"] is None else row["error"]


def small(run: Run, names: tuple[str, ...], precisions: tuple[str, ...], xp: ModuleType) -> Iterator[list[Row]]:
    """Yield the worst of every operator's small cases."""
    for name in names:
        samples = small_cases.samples(name, run.scale.cases)
        yield worst(row for sample in samples for row in checked(name, "small", sample, precisions, xp))


def real(run: Run, names: tuple[str, ...], precisions: tuple[str, ...], xp: ModuleType) -> Iterator[list[Row]]:
    """Yield the results of every case of a family."""
    for name in names:
        for operator, sample in real_sizes.samples(name, run.scale.cut):
            yield list(checked(operator, "real", sample, precisions, xp))


def main() -> int:
    """Print rows as soon as they are known."""
    run, (way, kind, *names) = this_run()
    xp = array_module(run.backend)
    if "torch" in LIBRARIES:
        import_module("executor.torch")
    allow_tf32(xp, way == TF32)
    single_rank(1).use_device(xp)
    exact = tuple(precision for precision in run.scale.precisions if precision != TF32)
    for rows in (small if kind == "small" else real)(run, tuple(names), exact if way == EXACT else (TF32,), xp):
        for row in rows:
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
