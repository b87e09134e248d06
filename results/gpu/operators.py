"""Every operator of the catalog that has a kernel, in every precision, beside double precision on the host.

Small cases are drawn as verification draws them, and compared with the operators' descriptions; cases of real sizes
are compared with NumPy's kernels. Many processes do so at once, as a GPU's kernels are compiled where they first run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from operator_verification.cases import CASES

import tdl
from executor.kernels import KERNELS
from results.gpu.comparison import TOLERANCE
from results.gpu.processes import Ended, Process, run_all
from results.gpu.real_sizes import FAMILIES
from results.gpu.settings import ONE_THREAD, Run, this_run

Row = dict[str, Any]
TF32 = "tf32"
EXACT = "exact"
"""How single precision is computed where it is not by TF32."""


def operators() -> list[str]:
    """Return the operators with a kernel and with cases."""
    return sorted(tdl.catalog.keys() & KERNELS.keys() & CASES.keys())


PRODUCTS = ("matmul", "convolution")
TF32_SHARES = 4
"""Categories of operators that TF32 changes, and the shares that they are checked in."""


def compared(way: str) -> Mapping[str, list[str]]:
    """Return what is compared in a way of computing single precision: families of real cases, and operators."""
    if way == EXACT:
        return {"real": list(FAMILIES), "small": operators()}
    return {
        "real": ["products", "attention", "convolutions"],
        "small": [name for name in operators() if tdl.catalog[name].category in PRODUCTS],
    }


def processes(run: Run) -> Iterator[Process]:
    """Yield a process for every share of the families of real cases, and of the small ones; again for TF32."""
    for way in (EXACT, *(precision for precision in run.scale.precisions if precision == TF32)):
        count = run.scale.shares if way == EXACT else TF32_SHARES
        for kind, names in compared(way).items():
            for share in range(min(count, len(names))):
                command = run.command("operator_checks", way, kind, *names[share::count])
                yield Process(f"{way} {kind} {share}", command, run.left_s, ONE_THREAD)


def written(run: Run, ended: list[Ended]) -> bool:
    """Write what is known; return whether everything that was to be compared is within its tolerance."""
    rows = list(chain.from_iterable(process.rows for process in ended))
    wrong = [row for row in rows if is_wrong(row)]
    failed = {process.name: process.failure for process in ended if process.failure}
    errors = worst(rows)
    absent = sorted({*operators()} - errors["small"].keys())
    run.write(
        "operators", {"tolerance": TOLERANCE, "wrong": wrong, "failed": failed, "absent": absent, "errors": errors}
    )
    return not wrong and not failed and not absent


def worst(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Return the largest errors: by kind, operator, library and precision; None where there is no error to tell."""
    errors: dict[str, dict[str, Any]] = {"small": {}, "real": {}}
    for row in rows:
        of_library = errors[row["kind"]].setdefault(row["operator"], {}).setdefault(row["library"], {})
        before = of_library.get(row["precision"], 0.0)
        of_library[row["precision"]] = None if None in (before, row["error"]) else max(before, row["error"])
    return errors


def is_wrong(row: Row) -> bool:
    """True if a kernel failed, or is further from double precision than its precision allows."""
    return row["error"] is None or row["error"] > TOLERANCE[row["precision"]]


def main() -> int:
    """Write operators.json."""
    run, _ = this_run()
    ended: list[Ended] = []
    right = False
    for process in run_all(processes(run), run.work, run.until, run.scale.processes):
        ended.append(process)
        right = written(run, ended)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
