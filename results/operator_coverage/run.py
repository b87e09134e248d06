"""Which operators of MXNet 0.11, ONNX and core ATen are described, and what is known of each.

    python -m results operator-coverage

writes data.json, coverage.svg, README.md and one table per catalog, all beside this file. It takes minutes, most of
them for the figures of verification; `python -m results.operator_coverage.run --facts` makes all else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from results.experiment import Pages, in_process, machine, publish, read_data
from results.operator_coverage import facts, picture
from results.operator_coverage import pages as tables_of

HERE = Path(__file__).parent


def timings() -> dict[str, Any]:
    """How long describing and analysing take from cold, and where that was."""
    groups = {"catalog": facts.catalog_applications(), "tables": facts.table_applications()}
    seconds = {
        name: {"applications": len(found), "seconds": facts.cold_seconds(found)} for name, found in groups.items()
    }
    return {"machine": machine(), "repeats": facts.REPEATS, **seconds}


def pages(found: Any) -> Pages:
    """Return the summary, the tables of the catalogs, and the picture."""
    tables = {name: tables_of.page(found, catalog) for catalog, name in tables_of.PAGES.items()}
    return {"README.md": tables_of.summary(found), "coverage.svg": picture.picture(found["counts"]), **tables}


def main(arguments: list[str]) -> None:
    """Find the facts; with `--facts` keep what takes minutes, seconds and verification's figures, as it was."""
    if arguments == ["--facts"]:
        known = read_data(HERE)
        slow = {name: known[name] for name in ("timings", "verification")}
    else:
        slow = {"timings": timings(), "verification": in_process("results.operator_coverage.verification")}
    publish(HERE, facts.coverage() | slow, pages)


if __name__ == "__main__":
    main(sys.argv[1:])
