"""Tofu's Figure 11: how the recursion splits WResNet-152-10 over 8 workers, drawn block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from results.experiment import Pages, publish, table
from results.partition_picture import wresnet_plan
from results.pictures import figure_of, text_of

HERE = Path(__file__).parent
BATCH, CHANNEL, OUT, IN, SPACE = "#3b6fb5", "#e08a2c", "#3f9b57", "#8e5bb0", "#999999"
OF_ACTIVATION = {"S0": (BATCH, "n"), "S1": (CHANNEL, "c"), "S2": (SPACE, "y"), "S3": (SPACE, "x")}
OF_WEIGHT = {"S0": (OUT, "o"), "S1": (IN, "i"), "S2": (SPACE, "y"), "S3": (SPACE, "x")}
OF_CHOICE = {"n": (BATCH, "n"), "co": (OUT, "o"), "ci": (IN, "i"), "y": (SPACE, "y"), "x": (SPACE, "x")}
LEGEND = ((BATCH, "n batch"), (CHANNEL, "c channels"), (OUT, "o output channels"), (IN, "i input channels"))
PARTS = ("conv1", "conv2", "conv3", "shortcut")
ROWS = (
    ("x", "x", OF_ACTIVATION),
    ("w", "w", OF_WEIGHT),
    ("forward", "fwd", OF_CHOICE),
    ("backward_input", "dx", OF_CHOICE),
    ("backward_weight", "dw", OF_CHOICE),
    ("y", "y", OF_ACTIVATION),
)
CELL, ROW, LEFT, COLUMN = 22, 20, 130, 178
INCH = 80
"""Units of the picture per inch."""


def box(axes: Axes, place: tuple[float, float], size: tuple[float, float], colour: str) -> None:
    """Draw a filled rectangle from its upper left corner."""
    axes.add_patch(Rectangle(place, *size, facecolor=colour, linewidth=0))


def draw_convolution(axes: Axes, x: float, y: float, conv: dict[str, Any]) -> None:
    """Draw what a convolution reads, along what it and its gradients are computed, and what it makes.

    There is a square per step, coloured and lettered by what the step splits.
    """
    for number, (key, label, known) in enumerate(ROWS):
        if key not in conv:
            continue
        top = y + number * ROW
        axes.text(x, top + 12, label)
        for step, choice in enumerate(conv[key]):
            colour, letter = known.get(choice, ("#dddddd", choice))
            left = x + 26 + step * CELL
            box(axes, (left, top), (CELL - 3, ROW - 4), colour)
            axes.text(left + (CELL - 3) / 2, top + 12, letter, ha="center", color="white")
        size = conv.get(f"{key}_megabytes")
        if size is not None:
            megabytes = f"{size:,.0f} MB" if size >= 1 else f"{size:.1f} MB"
            axes.text(x + 30 + 3 * CELL, top + 12, megabytes, color="#555555")


def picture(blocks: list[dict[str, Any]]) -> str:
    """Draw one band per run of blocks with equal decisions."""
    band = len(ROWS) * ROW + 16
    width, height = LEFT + len(PARTS) * COLUMN + 10, 24 + band * len(blocks)
    title = f"{wresnet_plan.MODEL}, batch {wresnet_plan.BATCH}: what each of three steps splits, left to right"
    figure = figure_of(title, {name: colour for colour, name in LEGEND}, (width / INCH, height / INCH + 0.7))
    axes = figure.subplots()
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for column, part in enumerate(PARTS):
        axes.text(LEFT + column * COLUMN, 16, part, fontweight="bold")
    for number, run in enumerate(blocks):
        top = 24 + band * number
        box(axes, (0, top - 4), (width, band), "#f6f6f6" if number % 2 else "#ffffff")
        stage, _, unit = run["first"].partition(".")
        axes.text(8, top + 14, stage, fontweight="bold")
        last = run["last"].partition(".")[2].removeprefix("unit")
        many = f"blocks {unit.removeprefix('unit')} to {last}" if run["blocks"] > 1 else unit.replace("unit", "block ")
        axes.text(8, top + 32, many)
        drawn = {part: run["convolutions"].get(part) for part in PARTS}
        if "conv" in run["convolutions"]:
            drawn["conv1"] = run["convolutions"]["conv"]
        for column, part in enumerate(PARTS):
            if drawn[part]:
                draw_convolution(axes, LEFT + column * COLUMN, top, drawn[part])
    return text_of(figure)


def rendered(moved: dict[str, dict[str, float]]) -> str:
    """Render what moves in each stage, in GB."""
    return table(
        ["stage", "weights and their gradients", "activations and theirs"],
        [(stage, f"{row['weights']:.2f}", f"{row['activations']:.2f}") for stage, row in moved.items()],
    )


def pages(data: Any) -> Pages:
    """Return the README's table, and the picture."""
    return {"moved": rendered(data["gigabytes"]), "partition.svg": picture(data["blocks"])}


if __name__ == "__main__":
    plan = wresnet_plan.plan()
    blocks = wresnet_plan.blocks(wresnet_plan.convolutions(plan))
    publish(HERE, {"bytes": plan.total_bytes, "blocks": blocks, "gigabytes": wresnet_plan.moved(plan)}, pages)
