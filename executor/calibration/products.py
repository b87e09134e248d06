"""Matrix products of a GPU, by shape and format: seconds of the executor's kernels, and what the fastest attains."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from executor.arena import Arena, Memory
from executor.backend import BackendError, require_dtypes
from executor.calibration.bench import Bench, seconds_in_a_row
from executor.calibration.programs import product_program
from executor.calibration.timing import FEWEST_ROUNDS, Timed, Work
from executor.fastest import kernel_set
from executor.kernel_calls import KernelCalls, kernel_calls
from executor.schedules import Rate
from executor.values import Array
from planner.graph.ir import ITEM_BYTES

DTYPES = ("float32", "float16", "bfloat16", "float64")
FORMAT_BYTES = {"tf32": 4, "float8": 1, **ITEM_BYTES}
SHAPES = (
    (128, 128, 128), (512, 512, 512), (16, 4096, 4096), (300, 3000, 700), (1024, 1024, 1024), (128, 4096, 4096),
    (8192, 768, 768), (8192, 128, 8192), (8192, 2304, 768), (4096, 1024, 4096), (8192, 3072, 768), (8192, 768, 3072),
    (768, 3072, 8192), (4096, 4096, 4096), (4095, 4097, 4093), (2048, 2048, 32768), (4096, 11008, 4096),
    (4096, 4096, 11008), (8192, 50257, 768), (8192, 8192, 8192),
)  # fmt: skip
"""Rows, columns and terms of products in transformers, and of others that fill tiles well or badly; the least first."""

SHARE_OF_MEMORY = 8
"""Operands and result may take one part in so many of what is free: kernels may copy them in single precision."""

Product = tuple[str, Callable[[], None]]
"""A product's format, and the action that computes it."""


def timed_products(bench: Bench, limit_s: float) -> tuple[Timed, dict[str, float]]:
    """Time products until `limit_s` is over, the smallest in any case; with operations per second of the fastest.

    These are by format: dtypes, and those in which the library multiplies besides.
    """
    until = time.perf_counter() + limit_s
    seconds: dict[str, float] = {}
    work: dict[str, Work] = {}
    fastest = defaultdict[str, float](float)
    for m, n, k in SHAPES:
        if seconds and (time.perf_counter() > until or not _fits(bench, m, n, k)):
            break
        for name, action in _products(bench, m, n, k):
            spelled = f"mm {name}[{m},{k}] {name}[{k},{n}] -> {name}[{m},{n}]"
            seconds[spelled], operations = seconds_in_a_row(bench.clock, action), 2.0 * m * n * k
            touched = (m * k + k * n + m * n) * FORMAT_BYTES[name]
            work[spelled] = Work("matmul", name, operations, touched)
            fastest[name] = max(fastest[name], operations / seconds[spelled])
    return Timed(seconds, {}, work, FEWEST_ROUNDS, 0.0), dict(fastest)


def _fits(bench: Bench, m: int, n: int, k: int) -> bool:
    free, _ = bench.xp.cuda.runtime.memGetInfo()
    return SHARE_OF_MEMORY * product_program("float32", m, n, k).arena_bytes < int(free)


def _products(bench: Bench, m: int, n: int, k: int) -> Iterator[Product]:
    """Yield the product of one shape in every format that there is."""
    for dtype in DTYPES:
        try:
            require_dtypes(bench.xp, [dtype])
        except BackendError:
            continue
        program = product_program(dtype, m, n, k)
        memory = Memory(Arena(bench.xp, program.arena_bytes), program)
        for operand in memory.views[:2]:
            _fill(bench, operand)
        kernels = kernel_set(bench.ranks.library, memory, bench.ranks)
        ((kernel, call),) = kernel_calls(program.tasks)
        yield dtype, KernelCalls(memory, kernels, Rate()).action(kernel, call)
        if dtype == "float32":
            for name, make in kernels.products.items():
                if (action := make(*memory.views[:2])) is not None:
                    yield name, action


def _fill(bench: Bench, operand: Array) -> None:
    """Fill a matrix with unlike values: a GPU multiplies zeros faster."""
    rows, columns = (bench.xp.sin(bench.xp.arange(extent, dtype="float32")) for extent in operand.shape)
    operand[...] = (rows[:, None] * columns).astype(operand.dtype)
