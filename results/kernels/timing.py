"""CPU time of two functions that do the same, each in a process of its own, in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from results.experiment import ROOT

Function = Callable[[], object]
Case = tuple[str, Function, Function]

SIDES = "ours", "pytorch"
"""A case has a function for each, in this order."""


def cpu_ms(function: Function) -> float:
    """Return the milliseconds of CPU that the process spends in a call."""
    started = time.process_time()
    function()
    return (time.process_time() - started) * 1e3


def serve(cases: Iterator[Case], side: str) -> None:
    """Print each case's name, and the milliseconds of a call of this side's function for every line that says `run`."""
    for name, *functions in cases:
        print(name, flush=True)
        for line in sys.stdin:
            if line != "run\n":
                break
            print(cpu_ms(functions[SIDES.index(side)]), flush=True)


class Side:
    """A process that serves one side of some cases."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()
        if kind is None and self._process.returncode:
            raise subprocess.CalledProcessError(self._process.returncode, self._process.args)

    def case(self) -> str:
        """Return the next case's name, which is empty after the last."""
        return self._line()

    def ms(self) -> float:
        """Call this side's function of the case."""
        self._say("run")
        return float(self._line())

    def next(self) -> None:
        """Go on to the next case."""
        self._say("next")

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


def side_by_side(module: str, *arguments: str, pairs: int) -> Iterator[dict[str, Any]]:
    """Call both sides of each case in turns, after one call of each.

    Yields the case's name, the median of either's milliseconds, and that of the ratios of neighbours. The module's
    arguments are the side and `arguments`.
    """
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(module, side, *arguments)) for side in SIDES]
        while all(names := [side.case() for side in sides]):
            for side in sides:
                side.ms()
            found = [[side.ms() for side in sides] for _ in range(pairs)]
            for side in sides:
                side.next()
            medians = (round(statistics.median(each), 3) for each in zip(*found, strict=True))
            yield {
                "case": names[0],
                "turns": pairs,
                **{f"{side}_ms": median for side, median in zip(SIDES, medians, strict=True)},
                "ratio": round(statistics.median(mine / theirs for mine, theirs in found), 3),
            }
