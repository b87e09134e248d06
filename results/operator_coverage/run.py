"""Which operators of MXNet 0.11, ONNX and core ATen are described, and what is known of each.

    python results/operator-coverage/run.py

writes coverage.json, coverage.svg, README.md and one table per catalog, all beside this file. It takes minutes, most of
them for the figures of verification.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # the figures of verification are those of the tests

from results.experiment import machine
from results.operator_coverage import facts, pages, picture
from results.operator_coverage.verification import verification


def timings() -> dict[str, Any]:
    """How long describing and analysing take from cold, and where that was."""
    groups = {"catalog": facts.catalog_applications(), "tables": facts.table_applications()}
    seconds = {
        name: {"applications": len(found), "seconds": facts.cold_seconds(found)} for name, found in groups.items()
    }
    return {"machine": machine(), "repeats": facts.REPEATS, **seconds}


def main() -> None:
    found = facts.coverage() | {"timings": timings(), "verification": verification()}
    (HERE / "coverage.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "coverage.svg").write_text(picture.picture(found["counts"]))
    (HERE / "README.md").write_text(pages.summary(found))
    for catalog, name in pages.PAGES.items():
        (HERE / name).write_text(pages.page(found, catalog))


if __name__ == "__main__":
    main()
