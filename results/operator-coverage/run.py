"""Which operators of MXNet 0.11, ONNX and core ATen are described, and what is known of each.

    python results/operator-coverage/run.py

writes coverage.json, coverage.svg, README.md and one table per catalog, all beside this file.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import facts
import pages
import picture

HERE = Path(__file__).parent


def timings() -> dict[str, Any]:
    """How long describing and analysing take from cold, and where that was."""
    groups = {"catalog": facts.catalog_applications(), "tables": facts.table_applications()}
    seconds = {
        name: {"applications": len(found), "seconds": facts.cold_seconds(found)} for name, found in groups.items()
    }
    return {"machine": machine(), "repeats": facts.REPEATS, **seconds}


def machine() -> str:
    """Say what processor and Python this is."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"one core of {models[0]}, Python {platform.python_version()}"


def main() -> None:
    found = facts.coverage() | {"timings": timings()}
    (HERE / "coverage.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "coverage.svg").write_text(picture.picture(found["counts"]))
    (HERE / "README.md").write_text(pages.summary(found))
    for catalog, name in pages.PAGES.items():
        (HERE / name).write_text(pages.page(found, catalog))


if __name__ == "__main__":
    main()
