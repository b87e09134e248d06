"""Train an example every way; print what that found as JSON.

python -m results.pytorch_training.measure gpt
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

from results.pytorch_training.beside import ADAM, SGD, Case, compared
from results.pytorch_training.run import BARS, WORKERS


def cases(name: str) -> Iterator[Case]:
    """Yield all of an example: by SGD in both dtypes, by Adam in the one in which rounding says little."""
    yield from (Case(name, workers, dtype, SGD) for workers, dtype in product(WORKERS, BARS))
    yield from (Case(name, workers, "float64", ADAM) for workers in WORKERS)


def row(case: Case) -> dict[str, Any]:
    """Return what training both ways found."""
    found = compared(case)
    return asdict(case) | {"loss": found.loss, "worst": found.worst, "worst_told": found.worst_told}


if __name__ == "__main__":
    print(json.dumps([row(case) for case in cases(sys.argv[1])]))
