"""Tofu's Table 2 from the zoo: weight, gradient and history of 21 models, beside the published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.graph import Graph
from planner.models import build
from results.experiment import Pages, publish, read_published, table

HERE = Path(__file__).parent
GIB, GB = 2**30, 10**9


def three_weights_bytes(graph: Graph) -> int:
    """Bytes of what every weight's update reads: the weight, its gradient, the optimizer's history of it."""
    producers = {output: node for node in graph.nodes for output in node.outputs}
    updates = [producers[new] for old, new in graph.updates.items() if graph.tensors[old].role == "weight"]
    if any(len(node.inputs) != 3 for node in updates):
        raise ValueError("expected every update to read a weight, a gradient and one history")
    return sum(graph.tensors[tensor].nbytes for node in updates for tensor in node.inputs)


def cell(name: str, published: float) -> dict[str, object]:
    """One model: bytes from its graph, and the published figure's error against them.

    Neither the batch nor the number of timesteps changes the weights.
    """
    total = three_weights_bytes(build(name, batch=1))
    return {
        "model": name,
        "published": published,
        "bytes": total,
        "gib": total / GIB,
        "error": published / (total / GIB) - 1,
        "error_if_decimal": published / (total / GB) - 1,
        "three_times_rounded": round(3 * round(total / GIB / 3, 1), 1),
    }


def cells() -> list[dict[str, object]]:
    """All cells, in the order of published.json."""
    return [cell(name, figure) for name, figure in read_published(HERE)["cells"].items()]


def rendered(rows: list[dict[str, object]]) -> str:
    """Render the cells for the README."""
    columns = ("model", "published", "found, GiB", "error", "3 x (W to 0.1 GiB)")
    return table(
        columns,
        [
            (
                f"`{row['model']}`",
                f"{row['published']:.1f}",
                f"{row['gib']:.2f}",
                f"{row['error']:+.1%}",
                f"{row['three_times_rounded']:.1f}",
            )
            for row in rows
        ],
    )


def says(rows: list[dict[str, Any]]) -> str:
    """Say how well the figures agree."""
    close = sorted((row for row in rows), key=lambda row: abs(row["error"]))
    outlier, rest = close[-1], close[:-1]
    decimal = [row["error_if_decimal"] for row in rest]
    differing = [row for row in rest if row["three_times_rounded"] != row["published"]]
    names = ", ".join(f"`{row['model']}`" for row in differing)
    return f"""- The source writes GB and means GiB: taken as 10^9 bytes, all cells but one are {-max(decimal):.0%} to
  {-min(decimal):.0%} too small.
- {len(rest)} of the {len(rows)} cells are within {abs(rest[-1]["error"]):.1%}. **`{outlier["model"]}` does not fit**:
  it is printed as {outlier["published"]}, the model says {outlier["gib"]:.1f}.
- The last column is the published figure to the digit in {len(rows) - len(differing) - 1} cells; beside
  `{outlier["model"]}`, {names} differ."""


def pages(data: Any) -> Pages:
    """Return the README's table."""
    rows = data["cells"]
    return {"table": rendered(rows), "says": says(rows)}


if __name__ == "__main__":
    publish(HERE, {"cells": cells()}, pages)
