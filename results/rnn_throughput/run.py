"""Samples per second of recurrent networks under every system (Tofu's Figure 9 and Table 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from results.experiment import Pages, publish, read_published
from results.throughput import measured
from results.throughput_pages import OTHERS, PAPER, blocks, picture, rates_table
from results.wresnet_throughput.systems.registry import SYSTEMS

HERE = Path(__file__).parent
PUBLISHED = read_published(HERE)
LAYERS, WIDTHS = (6, 8, 10), (4, 6, 8)
MODELS = [f"rnn-{layers}-{width}k" for width in WIDTHS for layers in LAYERS]
PANELS = {f"RNN, L = {layers}": {f"H = {width}K": f"rnn-{layers}-{width}k" for width in WIDTHS} for layers in LAYERS}
IDEAL_BATCH, FIRST = 512, 2048
TITLE = "Recurrent networks on a p2.8xlarge (Tofu, Figure 9)"


def pages(data: Any) -> Pages:
    """Return the page and the pictures."""
    return {
        **blocks(data, MODELS, PUBLISHED),
        "table_3": rates_table(data, [model for model in MODELS if model.endswith("-4k")], ["tofu", "op-placement"]),
        "throughput.svg": picture(data, TITLE, PANELS, PAPER, "hidden units", band=PUBLISHED["share_of_ideal"]),
        "others.svg": picture(data, f"{TITLE}: other systems", PANELS, OTHERS, "hidden units"),
    }


if __name__ == "__main__":
    rows = measured(MODELS, IDEAL_BATCH, FIRST, tuple(SYSTEMS))
    publish(HERE, {"rows": rows}, pages)
