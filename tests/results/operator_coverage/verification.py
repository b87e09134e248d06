"""What the tests of soundness and of mutants find, in numbers: how many shapes, checks, and mutants killed.

    python -m tests.results.operator_coverage.verification

writes them for the experiment to show, in minutes: every strategy of every description, every mutant of every operator
with a kernel.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tests.results.operator_coverage.test_soundness as tables
import tests.verify.test_mutants as mutants
import tests.verify.test_soundness as catalog
from results.operator_coverage import run

VERIFICATION = Path(run.__file__).with_name("verification.json")


def verification() -> dict[str, Any]:
    """Return all figures."""
    return {
        "soundness": {
            "with a kernel": _soundness(catalog.NAMES, catalog.split, set(catalog.FEWER)),
            "without a kernel": _soundness(sorted(tables.OPERATORS), tables.split, set()),
        },
        "fewer shapes": {name: list(found) for name, found in catalog.FEWER.items()},
        "mutants": {kind: _killed(mutants.made(kind, None)) for kind in mutants.LEAST}
        | {"reductions claimed, without a kernel": _claimed()},
    }


def _soundness(names: Iterable[str], split: Callable[[str], Any], fewer: set[str]) -> dict[str, Any]:
    """Count operators, strategies, the fewest shapes that one was split on, all shapes, and checks by kind."""
    checks: Counter[str] = Counter()
    found: dict[str, Any] = {"operators": 0, "strategies": 0, "shapes": 0}
    least = []
    for name in names:
        shapes, held = split(name)
        checks += held
        found["operators"] += 1
        found["strategies"] += len(shapes.split)
        found["shapes"] += len(shapes.drawn)
        least += [] if name in fewer else [shapes.least]
    return {**found, "fewest shapes of a strategy": min(least), "checks": dict(checks)}


def _killed(made: tuple[mutants.mutants.Mutant, ...]) -> list[int]:
    return [len(made) - len(mutants.alive(made)), len(made)]


def _claimed() -> list[int]:
    made, alive = tables.every_wrong_claim()
    return [len(made) - len(alive), len(made)]


if __name__ == "__main__":
    VERIFICATION.write_text(json.dumps(verification(), indent=1) + "\n")
