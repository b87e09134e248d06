"""Which operators of MXNet 0.11, ONNX and core ATen are described, and what is known of each.

    python -m results operator-coverage

writes data.json, coverage.svg, README.md and one table per catalog, all beside this file;
`python -m results.operator_coverage.run --facts` keeps the seconds as they are. What verification finds is in
verification.json, which its tests write (`python -m tests.results.operator_coverage.verification`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from results.experiment import Pages, machine, publish, read_data
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


def read_verification() -> Any:
    """Read what the tests of soundness and of mutants found."""
    return json.loads((HERE / "verification.json").read_text())


def pages(found: Any) -> Pages:
    """Return the summary, the tables of the catalogs, and the picture."""
    found = found | {"verification": read_verification()}
    tables = {name: tables_of.page(found, catalog) for catalog, name in tables_of.PAGES.items()}
    return {"README.md": tables_of.summary(found), "coverage.svg": picture.picture(found["counts"]), **tables}


def main(arguments: list[str]) -> None:
    """Find the facts; with `--facts` keep the seconds as they were."""
    seconds = read_data(HERE)["timings"] if arguments == ["--facts"] else timings()
    publish(HERE, facts.coverage() | {"timings": seconds}, pages)


if __name__ == "__main__":
    main(sys.argv[1:])
