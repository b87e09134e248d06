"""Tofu's Figure 11: how the recursion splits WResNet-152-10 over 8 workers, drawn block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from results import svg
from results.experiment import Pages, publish, table
from results.partition_picture import wresnet_plan

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


def steps(x: float, y: float, choices: list[str], known: dict[str, tuple[str, str]]) -> list[str]:
    """Draw one square per step, coloured and lettered by what it splits."""
    parts = []
    for step, choice in enumerate(choices):
        colour, letter = known.get(choice, ("#dddddd", choice))
        at = x + step * CELL
        parts.append(svg.bar(at, y, CELL - 3, ROW - 4, colour))
        parts.append(svg.text(at + (CELL - 3) / 2, y + 12, letter, 'text-anchor="middle" fill="white" font-size="11"'))
    return parts


def convolution(x: float, y: float, conv: dict[str, Any]) -> list[str]:
    """Draw what a convolution reads, along what it and its gradients are computed, and what it makes."""
    parts = []
    for number, (key, label, known) in enumerate(ROWS):
        if key not in conv:
            continue
        top = y + number * ROW
        parts += [svg.text(x, top + 12, label, 'font-size="11"'), *steps(x + 26, top, conv[key], known)]
        size = conv.get(f"{key}_megabytes")
        if size is not None:
            parts.append(
                svg.text(
                    x + 30 + 3 * CELL,
                    top + 12,
                    f"{size:,.0f} MB" if size >= 1 else f"{size:.1f} MB",
                    'font-size="10" fill="#555"',
                )
            )
    return parts


def picture(blocks: list[dict[str, Any]]) -> str:
    """Draw one band per run of blocks with equal decisions."""
    band = len(ROWS) * ROW + 16
    width, height = LEFT + len(PARTS) * COLUMN + 10, 62 + band * len(blocks)
    title = f"{wresnet_plan.MODEL}, batch {wresnet_plan.BATCH}: what each of three steps splits, left to right"
    parts = []
    for number, (colour, name) in enumerate(LEGEND):
        parts.append(svg.bar(8 + 150 * number, 24, 14, 14, colour))
        parts.append(svg.text(28 + 150 * number, 36, name))
    parts += [svg.text(LEFT + column * COLUMN, 54, part, 'font-weight="bold"') for column, part in enumerate(PARTS)]
    for number, run in enumerate(blocks):
        top = 62 + band * number
        shade = "#f6f6f6" if number % 2 else "#ffffff"
        parts.append(svg.bar(0, top - 4, width, band, shade))
        stage, _, unit = run["first"].partition(".")
        parts.append(svg.text(8, top + 14, stage, 'font-weight="bold"'))
        last = run["last"].partition(".")[2].removeprefix("unit")
        many = f"blocks {unit.removeprefix('unit')} to {last}" if run["blocks"] > 1 else unit.replace("unit", "block ")
        parts.append(svg.text(8, top + 32, many))
        drawn = {part: run["convolutions"].get(part) for part in PARTS}
        if "conv" in run["convolutions"]:
            drawn["conv1"] = run["convolutions"]["conv"]
        for column, part in enumerate(PARTS):
            if drawn[part]:
                parts += convolution(LEFT + column * COLUMN, top, drawn[part])
    return svg.drawing(width, height, title, parts)


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
