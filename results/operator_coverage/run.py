"""Which operators of MXNet 0.11 and core ATen are described, and what is known of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from results.experiment import Pages, publish
from results.operator_coverage import facts, pages as tables_of

HERE = Path(__file__).parent


def read_verification() -> Any:
    """Read what the tests of soundness and of mutants found."""
    return json.loads((HERE / "verification.json").read_text())


def pages(data: Any) -> Pages:
    """Return the summary, and the tables of the catalogs."""
    data = data | {"verification": read_verification()}
    tables = {name: tables_of.page(data, catalog) for catalog, name in tables_of.PAGES.items()}
    return {**tables_of.summary(data), **tables}


if __name__ == "__main__":
    publish(HERE, facts.coverage(), pages)
