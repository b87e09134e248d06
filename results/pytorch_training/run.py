"""The examples, small, trained by their plans for 1, 2 and 8 workers beside PyTorch.

    python -m results pytorch-training

writes data.json and the tables in README.md; `measure.py` trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results.experiment import ROOT, Pages, filled, in_process, publish, table

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if "def small(" in path.read_text())
BARS = {"float64": 1e-10, "float32": 1e-4}
"""How far losses and tensors may be from PyTorch's, relative to the largest value of each."""

WORKERS = (1, 2, 8)

ADAM_BARS = {"float64": 1e-6}
"""The same under Adam, which divides a gradient by its own size."""

Rows = Sequence[Mapping[str, Any]]


def shown(rows: Rows, columns: Mapping[str, str]) -> str:
    """Return a table of some rows: what they are about, and how far losses and tensors are from PyTorch's."""
    return table(
        ("example", "workers", "dtype", "losses", *columns),
        [
            [
                f"`{row['name']}`",
                row["workers"],
                row["dtype"],
                *(f"{row[key]:.1e}" for key in ("loss", *columns.values())),
            ]
            for row in rows
        ],
    )


def says(rows: Rows, key: str, bars: Mapping[str, float], of: int) -> str:
    """Say how many rows are within the bars, and how many there could be."""
    within = [row for row in rows if row["loss"] < BARS[row["dtype"]] and row[key] < bars[row["dtype"]]]
    limits = " and ".join(f"{bar:g} in {dtype}" for dtype, bar in bars.items())
    tried = "" if len(rows) == of else f" that were tried, of {of},"
    return f"{len(within)} of {len(rows)}{tried} are within {limits}."


def pages(data: Any) -> Pages:
    """Return the README with its tables."""
    sgd, adam = ([row for row in data["rows"] if row["optimizer"] == kind] for kind in ("SGD", "Adam"))
    blocks = {
        "sgd": shown(sgd, {"tensors": "worst"}),
        "sgd-said": says(sgd, "worst", BARS, len(NAMES) * len(WORKERS) * len(BARS)),
        "adam": shown(adam, {"parameters with a gradient": "worst_told", "all tensors": "worst"}),
        "adam-said": says(adam, "worst_told", ADAM_BARS, len(NAMES) * len(WORKERS)),
    }
    return {"README.md": filled(HERE / "README.md", **blocks)}


if __name__ == "__main__":
    rows = [row for name in NAMES for row in in_process("results.pytorch_training.measure", name)]
    publish(HERE, {"rows": rows}, pages)
