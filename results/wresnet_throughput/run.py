"""Samples per second of wide ResNets under every system (Tofu's Figure 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from results.experiment import Pages, publish, read_published
from results.throughput import measured
from results.throughput_pages import OTHERS, PAPER, blocks, picture
from results.wresnet_throughput.systems.registry import SYSTEMS

HERE = Path(__file__).parent
PUBLISHED = read_published(HERE)
DEPTHS, WIDTHS = (50, 101, 152), (4, 6, 8, 10)
MODELS = [f"wresnet-{depth}-{width}" for width in WIDTHS for depth in DEPTHS]
PANELS = {f"WResNet-{depth}": {f"W = {width}": f"wresnet-{depth}-{width}" for width in WIDTHS} for depth in DEPTHS}
DRAWN = [system for system in PAPER if system != "op-placement"]  # which the paper leaves out here
IDEAL_BATCH, FIRST = 128, 128
TITLE = "Wide ResNets on a p2.8xlarge (Tofu, Figure 8)"


def pages(data: Any) -> Pages:
    """Return the page and the pictures."""
    return {
        **blocks(data, MODELS, PUBLISHED),
        "throughput.svg": picture(data, TITLE, PANELS, DRAWN, "widening", band=PUBLISHED["share_of_ideal"]),
        "others.svg": picture(data, f"{TITLE}: other systems", PANELS, OTHERS, "widening"),
    }


if __name__ == "__main__":
    rows = measured(MODELS, IDEAL_BATCH, FIRST, tuple(SYSTEMS))
    publish(HERE, {"rows": rows}, pages)
