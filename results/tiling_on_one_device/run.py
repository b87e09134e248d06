"""An MLP of four layers of 8192, whole and cut into tiles by a plan, all on one device (SoyBean, Table 1)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planner.program.lower import lower
from results import bars, svg
from results.experiment import Pages, publish, table
from results.steps import GIGABYTE, MILLISECONDS, Row, exposed, graph, only, plan, step
from results.tiling_on_one_device.device import shared

HERE = Path(__file__).parent
MODEL = "mlp-4-8192"
BATCHES = (512, 2048)
TILES = (2, 4, 8)
SPACES = {"SoyBean's plan": "S,R", "split only": "S"}
"""What a plan may do with tensors; under `S` nothing is stored twice."""

COLOURS = {
    "whole": svg.GREY,
    "SoyBean's plan": svg.GREEN,
    "split only": svg.BLUE,
}


def measured(batch: int) -> Iterable[Row]:
    """Simulate the MLP whole, and cut by plans of either space."""
    of = graph(MODEL, (("batch", batch),))
    yield {"batch": batch, "tiles": 1, "how": "whole", **step(lower(plan(of, 1, "SoyBean")), shared(1))}
    for tiles in TILES:
        for how, placements in SPACES.items():
            tiled = plan(of, tiles, "SoyBean", placements)
            told = {"batch": batch, "tiles": tiles}
            yield {**told, "how": how, **step(lower(tiled), shared(tiles))}


def seconds_table(rows: list[Row]) -> str:
    """Render milliseconds, what copying adds of them, how much longer than whole, and bytes copied and stored."""
    lines = []
    for row in rows:
        whole = only(rows, batch=row["batch"], tiles=1)
        lines.append(
            [
                row["batch"],
                row["tiles"],
                row["how"],
                f"{MILLISECONDS * row['seconds']:.0f} ({MILLISECONDS * exposed(row):.0f})",
                f"{row['seconds'] / whole['seconds'] - 1:+.1%}",
                f"{row['bytes'] / GIGABYTE:.2f}",
                f"{row['tiles'] * row['arena_bytes'] / whole['arena_bytes'] - 1:+.1%}",
            ]
        )
    return table(["batch", "tiles", "plan", "ms", "more time", "GB copied", "more memory"], lines)


def picture(rows: list[Row]) -> str:
    """Draw milliseconds by tiles, a panel for each batch."""
    panels = []
    for batch in BATCHES:
        own = [row for row in rows if row["batch"] == batch]
        groups = {
            str(tiles): [
                bars.Bar(row["how"], MILLISECONDS * row["without_communication"], MILLISECONDS * exposed(row))
                for row in own
                if row["tiles"] == tiles
            ]
            for tiles in (1, *TILES)
        }
        panels.append(bars.Panel(f"batch {batch}", groups, "tiles of each tensor", "milliseconds per step"))
    title = "Four layers of 8192 on one GK210, whole and cut by a plan, simulated (SoyBean, Table 1)"
    return bars.draw(title, panels, COLOURS, note="paler: what copies between tiles add")


def pages(data: Any) -> Pages:
    """Return the README's table, and the picture."""
    return {"seconds": seconds_table(data["rows"]), "seconds.svg": picture(data["rows"])}


if __name__ == "__main__":
    publish(HERE, {"rows": [row for batch in BATCHES for row in measured(batch)]}, pages)
