"""One side of a measurement, in a process of its own. Arguments: SIDE INSTRUCTIONS, and `model NAME` or `kernels`.

SIDE is `ours` or `pytorch`. INSTRUCTIONS is `widest`, what either side chooses on this processor, or `avx2`, at most
that. With `versions` alone it prints what is measured, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from executor.process import choose_blas, keep_memory

AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # what NumPy 2.4 chooses from beyond AVX2
}


def prepare(side: str, instructions: str) -> None:
    """Settle what must be before NumPy and PyTorch are loaded; memory is kept where `execute` would keep it."""
    for name in AVX2:
        os.environ.pop(name, None)
    if instructions == "avx2":
        os.environ.update(AVX2)
    choose_blas()
    if side == "ours":
        keep_memory()


def versions() -> dict[str, str]:
    """Name the libraries that are measured."""
    torch, libraries = import_module("torch"), import_module("threadpoolctl").threadpool_info
    numpy = import_module("numpy").__version__
    blas = import_module("executor.process").blas(libraries())
    return {"pytorch": torch.__version__, "numpy": numpy, "blas": blas}


def cases(what: str, *arguments: str) -> Iterator[tuple[Any, ...]]:
    """Return a model's step, or all kernels, of either side, with one thread."""
    import_module("torch").set_num_threads(1)
    if what == "model":
        (name,) = arguments
        return iter([(name, *import_module("results.kernels.models").steps(name))])
    kernels: Iterator[tuple[Any, ...]] = import_module("results.kernels.operators").cases()
    return kernels


if __name__ == "__main__":
    if sys.argv[1:] == ["versions"]:
        prepare("ours", "widest")
        print(json.dumps(versions()))
    else:
        chosen, instructions, *asked = sys.argv[1:]
        prepare(chosen, instructions)
        import_module("results.kernels.timing").serve(cases(*asked), chosen)
