"""Every operator in four dtypes on the double, by both libraries of kernels, against its description in float64."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import pytest
from operator_verification.application import Application, run_whole

import tdl
from executor.cases import Draw, draw_case, generators
from executor.kernels import LIBRARIES, KernelCall
from planner.graph.opaque_ops import OPERATORS
from planner.graph.rules import RULES

TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "float16": 8e-3, "bfloat16": 6e-2}
"""Greatest difference, relative to the largest value of the tensor or 1: a few roundings."""

CASES = 3
NAMES = sorted(set(tdl.catalog) - {operator.name for operator in OPERATORS})


OWN = {"arrays": NAMES, "torch": []}
"""Operators of which each library has a kernel of its own."""

STRICT = {"arrays": nullcontext}
"""What fails where a library's kernels for GPUs would."""

if find_spec("torch") is not None:
    from executor.torch.kernels import TORCH_KERNELS
    from tests.cupy_double.torch_operators import Strict

    STRICT["torch"] = Strict
    OWN["torch"] = sorted(set(NAMES) & set(TORCH_KERNELS))


@dataclass(frozen=True)
class Bound(Application):
    """An application whose kernel is bound as a worker binds it: with 16-bit operands where it takes them."""

    library: str = "arrays"

    def call(self, inputs, outputs, ranges, origins):
        attributes = {**self.case.attributes, "extents": self.extents}
        faults = self.xp.zeros(1, bool)
        call = KernelCall(self.xp, tuple(inputs), tuple(outputs), attributes, ranges, tuple(origins), faults)
        action, waits = LIBRARIES[self.library].bind(self.operator.name, call), self.xp._memory.WAITS
        before = waits.copy()
        with STRICT[self.library]():
            action()
        assert waits - before == {}  # the host does not wait for the device
        assert not faults.get()[0]


def of_dtype(case, dtype):
    return replace(case, operands=tuple(a.astype(dtype) if a.dtype.kind == "f" or a.dtype.name in TOLERANCES else a
                                        for a in case.operands))  # fmt: skip


def relative_error(result, expected):
    result, expected = np.asarray(result, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    assert (np.isfinite(result) == finite).all()
    assert (result[~finite] == expected[~finite])[~np.isnan(expected[~finite])].all()
    gap = np.abs(result - expected)[finite].max(initial=0)
    return gap / max(1.0, np.abs(expected[finite]).max(initial=0))


@pytest.mark.parametrize(("library", "name"), [(library, name) for library in OWN for name in OWN[library]])
def test_an_operator_is_right_in_every_dtype(cupy, library, name):
    operator, kernel = tdl.catalog[name], LIBRARIES[library].kernels[name]
    draw = Draw(np.random.default_rng([7, *name.encode()]))
    for _ in range(CASES):
        drawn = draw_case(generators()[name], draw)
        for dtype, tolerance in TOLERANCES.items():
            case = of_dtype(drawn, dtype)
            exact = Application(operator, kernel, of_dtype(case, "float64"), RULES).expected
            results = run_whole(Bound(operator, kernel, case, RULES, cupy, library))
            for result, expected in zip(results, exact, strict=True):
                assert relative_error(result, expected) <= tolerance, (dtype, case.attributes)
