"""What the tests of soundness and of mutants find, in numbers: how many shapes, checks, and mutants killed.

    python -m tests.results.operator_coverage.verification

writes them for the experiment to show, in minutes: every strategy and every mutant of every operator with a kernel.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tests.verify.test_mutants as mutants
import tests.verify.test_soundness as catalog
from results.operator_coverage import run

VERIFICATION = Path(run.__file__).with_name("verification.json")


def verification() -> dict[str, Any]:
    """Return all figures."""
    return {
        "soundness": {
            "with a kernel": _soundness(catalog.NAMES, catalog.split, set(catalog.FEWER)),
        },
        "fewer shapes": {name: list(names) for name, names in catalog.FEWER.items()},
        "mutants": {kind: _killed(mutants.mutants_of(kind, None)) for kind in mutants.LEAST},
    }


def _soundness(names: Iterable[str], split: Callable[[str], Any], fewer: set[str]) -> dict[str, Any]:
    """Count operators, strategies, the fewest shapes that one was split on, all shapes, and checks by kind."""
    checks: Counter[str] = Counter()
    counts: dict[str, Any] = {"operators": 0, "strategies": 0, "shapes": 0}
    least = []
    for name in names:
        shapes, held = split(name)
        checks += held
        counts["operators"] += 1
        counts["strategies"] += len(shapes.split)
        counts["shapes"] += len(shapes.drawn)
        least += [] if name in fewer else [shapes.least]
    return {**counts, "fewest shapes of a strategy": min(least), "checks": dict(checks)}


def _killed(drawn: tuple[mutants.mutants.Mutant, ...]) -> list[int]:
    return [len(drawn) - len(mutants.alive(drawn)), len(drawn)]


if __name__ == "__main__":
    VERIFICATION.write_text(json.dumps(verification(), indent=1) + "\n")
