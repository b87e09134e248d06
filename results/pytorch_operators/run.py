"""Sweeps of samples of PyTorch's operators and of modules drawn at random, a process for each part."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results.experiment import ROOT, Pages, publish, table

HERE = Path(__file__).parent
PARTS, SEEDS, SEEDS_PER_RUN = 8, 2000, 250
OUTCOMES = ("right", "refused", "wrong", "bare")
NO_RESULT = "no result"
FAILED = re.compile(rf"^\S+ (?:wrong|bare|{NO_RESULT}): ")


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    counts = [Counter(operators) for operators in data["operators"].values()]
    total = sum(counts, Counter())
    modules = [Counter(run["outcomes"]) for run in data["modules"]]
    spans = [f"{run['first']} to {run['first'] + run['count'] - 1}" for run in data["modules"]]
    return {
        "operators": table(
            ("operators", "with a sample", *OUTCOMES, NO_RESULT),
            [(data["listed"], sum(map(bool, counts)), *_cells(total), total[NO_RESULT])],
        ),
        "operators-failed": _listed(data["operators_failed"]),
        "modules": table(
            ("seeds", *OUTCOMES),
            [*((span, *_cells(outcomes)) for span, outcomes in zip(spans, modules, strict=True)),
             ("all", *_cells(sum(modules, Counter())))],
        ),
        "modules-failed": _listed(data["modules_failed"]),
    }  # fmt: skip


def _cells(counts: Mapping[str, int]) -> list[int]:
    return [counts.get(kind, 0) for kind in OUTCOMES]


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "None is wrong, none ends in an error of Python."


def operators(part: int, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Sweep a part of the operators; return the outcomes of each, and what failed."""
    file = folder / f"{part}.json"
    printed = _printed("opinfo", "--part", f"{part}/{PARTS}", "--json", str(file))
    return json.loads(file.read_text()), [line for line in printed if FAILED.match(line)]


def modules(first: int) -> tuple[dict[str, Any], list[str]]:
    """Sweep some modules; return their outcomes, and what failed."""
    *failed, summary = _printed("fuzz", "--first", str(first), "--count", str(SEEDS_PER_RUN))
    outcomes = {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", summary)}
    return {"first": first, "count": SEEDS_PER_RUN, "outcomes": outcomes}, failed


def _printed(sweep: str, *arguments: str) -> list[str]:
    """Return the lines that a sweep prints, which ends with status 1 where something failed."""
    command = [sys.executable, "-m", f"tests.pytorch.{sweep}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout.splitlines()


def swept() -> dict[str, Any]:
    """Run both sweeps whole."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [operators(part, Path(folder)) for part in range(PARTS)]
    runs = [modules(first) for first in range(0, SEEDS, SEEDS_PER_RUN)]
    by_name = {name: outcomes for part, _ in parts for name, outcomes in part.items()}
    return {
        "listed": len(by_name),
        "operators": by_name,
        "operators_failed": [line for _, failed in parts for line in failed],
        "modules": [run for run, _ in runs],
        "modules_failed": [line for _, failed in runs for line in failed],
    }


if __name__ == "__main__":
    publish(HERE, swept(), pages)
