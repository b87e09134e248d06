"""One measurement in a process of its own; prints JSON. Arguments: INSTRUCTIONS, `model NAME PAIRS` or `kernels PAIRS`.

INSTRUCTIONS is `widest`, what either side chooses on this processor, or `avx2`, at most that on both sides.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

from executor.environment import choose_blas

AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}


def prepare(instructions: str) -> None:
    """Settle what must be before NumPy and PyTorch are loaded."""
    for name in AVX2:
        os.environ.pop(name, None)
    if instructions == "avx2":
        os.environ.update(AVX2)
    choose_blas()


def measured(what: str, *arguments: str) -> Any:
    """Measure, with one thread."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    beside = import_module("results.kernels.timing").side_by_side
    if what == "model":
        name, pairs = arguments
        return {"model": name, **beside(*import_module("results.kernels.models").steps(name), int(pairs))}
    if what == "versions":
        libraries = import_module("threadpoolctl").threadpool_info()
        blas = import_module("executor.environment").blas(libraries)
        return {"pytorch": torch.__version__, "numpy": import_module("numpy").__version__, "blas": blas}
    made = import_module("results.kernels.operators").cases()
    return [{"kernel": name, **beside(ours, theirs, int(arguments[0]))} for name, ours, theirs in made]


if __name__ == "__main__":
    prepare(sys.argv[1])
    print(json.dumps(measured(*sys.argv[2:])))
