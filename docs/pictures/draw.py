"""Draw the pictures of the explanations from computed data: python docs/pictures/draw.py."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

import planner
from planner.layout import REPLICATE, Layout, Shard, owned_by_all
from planner.plans.plan import Plan

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
WORKERS = ("#4c78a8", "#9ecae9", "#f58518", "#ffbf79")
"""A colour for each of four workers: alike where the first digit is."""

KINDS = {
    "persistent": ("#4c78a8", "weights, states, inputs"),
    "tensor": ("#54a24b", "results"),
    "fetch": ("#f58518", "fetched operands"),
    "partial": ("#72b7b2", "partial sums"),
    "reduce": ("#e45756", "shares of sums"),
    "staging": ("#bab0ac", "packed messages"),
}
"""A colour and a name for each kind of buffer."""
mpl.rcParams |= {"svg.hashsalt": "pictures", "svg.fonttype": "none", "font.size": 10, "font.family": "sans-serif"}


def save(figure: Figure, name: str) -> None:
    """Write a picture, the same bytes each time."""
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight", facecolor="white")
    plt.close(figure)


def flow() -> None:
    """Draw what becomes of a graph: one plan, one program, two interpreters."""
    figure, axes = plt.subplots(figsize=(10.5, 2.6))
    boxes = {
        "graph": (0, 1, "graph\noperators, tensors"),
        "plan": (2.2, 1, "plan.json\nlayouts, strategies"),
        "program": (4.4, 1, "program\ntasks per worker"),
        "simulator": (6.6, 1.75, "simulator\nseconds, memory"),
        "executor": (6.6, 0.25, "executor\nranks, arenas"),
        "compare": (8.8, 1, "compare\nbytes equal?"),
    }
    for x, y, text in boxes.values():
        axes.add_patch(Rectangle((x, y), 1.6, 0.9, facecolor="#eef3f8", edgecolor="#4c78a8"))
        axes.text(x + 0.8, y + 0.45, text, ha="center", va="center", fontsize=8)
    for start, end, label in (
        ("graph", "plan", "search"),
        ("plan", "program", "lower"),
        ("program", "simulator", ""),
        ("program", "executor", ""),
        ("simulator", "compare", ""),
        ("executor", "compare", ""),
    ):
        (x0, y0, _), (x1, y1, _) = boxes[start], boxes[end]
        ends = (x0 + 1.6, y0 + 0.45), (x1, y1 + 0.45)
        axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=12, color="#333333"))
        axes.text((ends[0][0] + ends[1][0]) / 2, ends[0][1] + 0.12, label, ha="center", fontsize=8)
    axes.set(xlim=(-0.1, 10.5), ylim=(0, 2.8))
    axes.axis("off")
    axes.set_title("One plan, one program, two interpreters", loc="left", fontsize=11)
    save(figure, "flow")


def layouts() -> None:
    """Draw who holds which indices of an extent of 8 under three layouts, four workers as 2 x 2."""
    rows: list[tuple[str, Layout]] = [
        ("S0, S0: both steps", (Shard(0), Shard(0))),
        ("S0, R: step 1 only", (Shard(0), REPLICATE)),
        ("R, S0: step 2 only", (REPLICATE, Shard(0))),
    ]
    figure, panels = plt.subplots(len(rows), 1, figsize=(7.5, 4.8), sharex=True)
    for axes, (title, layout) in zip(panels, rows, strict=True):
        for worker, (runs,) in enumerate(owned_by_all((8,), layout, (2, 2))):
            for start, stop in runs:
                for index in range(start, stop):
                    axes.add_patch(Rectangle((index, 3 - worker), 1, 1, facecolor=WORKERS[worker], edgecolor="white"))
        axes.set(xlim=(0, 8), ylim=(0, 4), yticks=[3.5, 2.5, 1.5, 0.5], yticklabels=[0, 1, 2, 3], ylabel="worker")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks(np.arange(8) + 0.5, [f"{i}\n{i // 4} {i // 2 % 2}" for i in range(8)])
        axes.tick_params(length=0)
    panels[-1].set_xlabel("index, and below it its digits at steps 1 and 2")
    figure.suptitle("Who holds which index of an extent of 8; ways (2, 2)", x=0.02, ha="left", fontsize=11)
    figure.tight_layout()
    save(figure, "layouts")


def product() -> None:
    """Draw the worked example: who holds X, W and Y."""
    plan = planner.load(EXAMPLES / "product.plan.json")
    figure, panels = plt.subplots(1, 3, figsize=(8.5, 3.2))
    for axes, name in zip(panels, ("X", "W", "Y"), strict=True):
        shape = plan.graph.tensors[name].shape
        for worker, region in enumerate(owned_by_all(shape, plan.layouts[name], plan.ways)):
            for i in (i for start, stop in region[0] for i in range(start, stop)):
                for j in (j for start, stop in region[1] for j in range(start, stop)):
                    axes.add_patch(Rectangle((j, i), 1, 1, facecolor=WORKERS[worker], edgecolor="white"))
                    axes.text(j + 0.5, i + 0.5, worker, ha="center", va="center")
        axes.set(xlim=(0, 4), ylim=(4, 0), aspect="equal", xlabel="column", ylabel="row")
        axes.set_xticks(np.arange(4) + 0.5, range(4))
        axes.set_yticks(np.arange(4) + 0.5, range(4))
        axes.tick_params(length=0)
        axes.set_title(f"{name}: {', '.join(map(str, plan.layouts[name]))}", fontsize=10)
    figure.suptitle("Which worker holds which element", x=0.02, ha="left", fontsize=11)
    figure.tight_layout()
    save(figure, "product")


def arena() -> None:
    """Draw when and where worker 0's buffers live in one iteration of a small perceptron."""
    plan = planner.plan(planner.model("mlp-4-64", batch=64), workers=4)
    figure, axes = plt.subplots(figsize=(8.5, 4))
    _arena_of(plan, axes)
    axes.set_title("Worker 0's arena over one iteration (mlp-4-64, batch 64, 4 workers)", loc="left", fontsize=11)
    save(figure, "arena")


def _arena_of(plan: Plan, axes: Axes) -> None:
    worker = planner.lower(plan).workers[0]
    for buffer in worker.buffers:
        span = buffer.last - buffer.first + 1
        colour, _ = KINDS[buffer.kind]
        box = (buffer.first, buffer.offset / 1024), span, buffer.nbytes / 1024
        axes.add_patch(Rectangle(*box, facecolor=colour, edgecolor="white", linewidth=0.4, alpha=0.85))
    shown = [KINDS[kind] for kind in KINDS if any(buffer.kind == kind for buffer in worker.buffers)]
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour, _ in shown]
    axes.legend(
        handles, [name for _, name in shown], loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9
    )
    axes.set(xlim=(0, len(worker.tasks)), ylim=(0, worker.arena_bytes / 1024))
    axes.set(xlabel="position in the common order of tasks", ylabel="offset in the arena (KiB)")


if __name__ == "__main__":
    for draw in (flow, layouts, product, arena):
        draw()
