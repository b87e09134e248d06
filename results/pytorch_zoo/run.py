"""Bytes of the plans of the zoo's models and of the same models written in PyTorch and traced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results.experiment import Pages, in_process, publish, table

HERE = Path(__file__).parent


def difference(row: Mapping[str, Any]) -> float:
    """Return by which part of the zoo's bytes the traced model's are more."""
    return float(row["traced_bytes"] / row["zoo_bytes"] - 1)


def says(rows: list[dict[str, Any]]) -> str:
    """Say how far apart the plans are."""
    equal = [row for row in rows if row["traced_bytes"] == row["zoo_bytes"]]
    others = [row for row in rows if row not in equal]
    apart = [f"{row['written']}, batch {row['batch']}, {row['placements']}: {difference(row):+.1%}" for row in others]
    return f"{len(equal)} of {len(rows)} plans move the same bytes. The others: {'; '.join(apart)}."


def cells(row: dict[str, Any]) -> list[str]:
    """Render a case."""
    return [
        f"`{row['model']}`",
        f"{row['batch']}",
        row["written"],
        row["placements"],
        f"{row['zoo_bytes']:,}",
        f"{row['traced_bytes']:,}",
        f"{difference(row):+.2%}",
    ]


def pages(data: Any) -> Pages:
    """Return the README's table."""
    columns = ("model", "batch", "written with", "placements", "zoo, bytes", "traced, bytes", "difference")
    return {"plans": table(columns, map(cells, data["rows"])), "says": says(data["rows"])}


if __name__ == "__main__":
    publish(HERE, {"rows": in_process("results.pytorch_zoo.measure")}, pages)
