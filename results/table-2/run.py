"""Tofu's Table 2 from the zoo: weight, gradient and history of 21 models, beside the published figures.

    python results/table-2/run.py

writes data.json, table.svg and the table in README.md, all beside this file.
"""

from __future__ import annotations

import json
from pathlib import Path

from planner.graph import Graph
from planner.models import build
from results.experiment import table, write_data, write_in_readme

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
    published = json.loads((HERE / "published.json").read_text())
    return [cell(name, figure) for name, figure in published["cells"].items()]


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


def picture(rows: list[dict[str, object]]) -> str:
    """Draw the errors as horizontal bars, in SVG."""
    height, middle, scale = 18, 330, 1500
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="620" height="{height * (len(rows) + 2)}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="16">published against found, in GiB: error of each cell</text>',
    ]
    for number, row in enumerate(rows, start=1):
        error, top = float(str(row["error"])), height * number + 8
        left, length = middle + min(0.0, error) * scale, abs(error) * scale
        colour = "#c0392b" if abs(error) > 0.03 else "#34699a"
        label = f"{row['published']:.1f} / {row['gib']:.2f}   {error:+.1%}"
        parts += [
            f'<text x="8" y="{top + 12}">{row["model"]}</text>',
            f'<text x="130" y="{top + 12}">{label}</text>',
            f'<rect x="{left:.1f}" y="{top + 2}" width="{length:.1f}" height="{height - 6}" fill="{colour}"/>',
        ]
    bottom = height * (len(rows) + 1) + 8
    parts.append(f'<line x1="{middle}" y1="{height + 6}" x2="{middle}" y2="{bottom}" stroke="black"/>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Write the data, the picture and the README's table."""
    rows = cells()
    write_data(HERE, {"cells": rows})
    (HERE / "table.svg").write_text(picture(rows))
    write_in_readme(HERE, table=rendered(rows))
    print(rendered(rows))


if __name__ == "__main__":
    main()
