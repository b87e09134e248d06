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

END = "end"
"""What a side says instead of another case."""


def cpu_ms(function: Function) -> float:
    """Return the milliseconds of CPU that the process spends in a call."""
    started = time.process_time()
    function()
    return (time.process_time() - started) * 1e3


def serve(cases: Iterator[Case], side: str) -> None:
    """Print each case's name, and the milliseconds of a call of this side's function for every line that says `run`."""
    for name, *functions in cases:
        print(f"case {name}", flush=True)
        for line in sys.stdin:
            if line != "run\n":
                break
            print(cpu_ms(functions[SIDES.index(side)]), flush=True)
    print(END, flush=True)


class Side:
    """A process that serves one side of some cases."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._name = " ".join((module, *arguments))
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
        """Return the line that names the next case, or says that there is none."""
        line = self._line()
        if line != END and not line.startswith("case "):
            raise ValueError(f"{self._name}: expected a case, found {line!r}")
        return line

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
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(f"{self._name}: ended with status {self._process.wait()}, having more to say")
        return line.rstrip("\n")


Pairs = list[list[float]]
"""Milliseconds of one call of either side, and of another."""


def in_turns(module: str, *arguments: str, pairs: int) -> Iterator[tuple[str, Pairs]]:
    """Call both sides of each case in turns, after one call of each; return its name and what they took.

    The module's arguments are the side and `arguments`.
    """
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(module, side, *arguments)) for side in SIDES]
        while True:
            case, other = (side.case() for side in sides)
            if case != other:
                raise ValueError(f"{module}: expected {case!r} of {SIDES[1]}, too, found {other!r}")
            if case == END:
                break
            for side in sides:
                side.ms()
            yield case.removeprefix("case "), [[side.ms() for side in sides] for _ in range(pairs)]
            for side in sides:
                side.next()


def summary(name: str, pairs: Pairs) -> dict[str, Any]:
    """Return the case's name, the median of either's milliseconds, and that of the ratios of neighbours."""
    ours, theirs = zip(*pairs, strict=True)
    medians = {
        f"{side}_ms": round(statistics.median(each), 3) for side, each in zip(SIDES, (ours, theirs), strict=True)
    }
    ratio = round(statistics.median(mine / other for mine, other in pairs), 3)
    return {"case": name, "turns": len(pairs), **medians, "ratio": ratio}
