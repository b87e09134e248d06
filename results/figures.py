"""The figures of the README, made from the experiments' data and from nothing else."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from results.certificate.run import agreed
from results.decisions import run as decisions
from results.experiment import Pages, gap, read_data, read_published, table
from results.operator_coverage.run import read_verification
from results.other_planners import run as other_planners

HERE = Path(__file__).parent
SEVERAL = ("S", "S,R")
GIGABYTE, WORKERS = 10**9, 8
LEAST_CHANGE = 0.0005

Row = dict[str, Any]


def recursion(data: Any) -> str:
    """Say what the recursion takes on its benchmarks, and what the command takes."""

    def listed(placements: str) -> str:
        rows = (row for row in data["benchmarks"] if row["placements"] == placements)
        return ", ".join(f"{row['model']} {row['seconds']:.1f} s" for row in rows)

    searches = "; ".join(f"`{placements}`: {listed(placements)}" for placements in SEVERAL)
    seconds = [row["wall_seconds"] for row in data["commands"]]
    published = read_published(HERE / "search_time")["tofu"]["rows"]
    tofu = ", ".join(f"{row['model']} {row['recursion']}" for row in published)
    return f"{searches} (Tofu, `S`: {tofu}); the command `plan` {min(seconds):.1f} to {max(seconds):.1f} s"


def growth(data: Any) -> str:
    """Say how seconds grow with depth, and what the largest model takes."""
    exponents = [row["exponent"] for row in data["depths"]]
    largest = max(data["workers"], key=lambda row: prod(row["ways"]))
    return (
        f"exponents {min(exponents):.2f} to {max(exponents):.2f} (`S` and `S,R`); {largest['model']} over "
        f"{prod(largest['ways'])} workers {largest['seconds']:.1f} s (`{largest['placements']}`)"
    )


def joint(data: Any, graph: str) -> str:
    """Say what the joint search takes for 8 workers, and how far from the least its plans may be."""

    def cell(row: Row) -> str:
        if "over" in row:
            return f"{row['model']} over {row['over']}"
        if row["winner"] != "joint":
            return f"{row['model']} {row['cpu_seconds']:.1f} s (the plan of the default `{row['winner']}` is better)"
        memory = row["memory_bytes"] / GIGABYTE
        much = f", {memory:.1f} GB" if memory > 1 else ""
        return f"{row['model']} {row['cpu_seconds']:.1f} s{much} ({gap(row['lower_bound'], row['plan_bytes'])})"

    def listed(placements: str) -> str:
        asked = {"workers": WORKERS, "placements": placements, "graph": graph, "search": "joint"}
        return ", ".join(cell(row) for rows in data["rows"].values() for row in rows if asked.items() <= row.items())

    return "; ".join(f"`{placements}`: {listed(placements)}" for placements in SEVERAL)


def change(ratio: float) -> str:
    """Say how much more or less something is."""
    return f"{ratio - 1:+.1%}" if abs(ratio - 1) >= LEAST_CHANGE else "the same"


def beside(rows: list[Row], placements: str, ratio: Callable[[Row, Row], float]) -> str:
    """Say of every model how the best plan compares with the other planner's, and how far from the least it may be."""
    best = [
        (row, min((run for run in row["found"] if run["placements"] == placements), key=lambda run: int(run["bytes"])))
        for row in rows
    ]
    return ", ".join(f"{row['model']} {change(ratio(row, run))} ({other_planners.gap(run, row)})" for row, run in best)


def prototype(data: Any) -> str:
    """Say by how much the best plans are below the prototype's."""

    def ratio(_row: Row, run: Row) -> float:
        return float(run["ratio"])

    return "elements moved: " + "; ".join(
        f"`{placements}`: {beside(data['tofu'], placements, ratio)}" for placements in SEVERAL
    )


def alpa(data: Any) -> str:
    """Say by how much the best plans are below those of Alpa's integer program."""

    def ratio(row: Row, run: Row) -> float:
        return other_planners.megabytes(run) / float(row["megabytes"])

    return "bytes per device: " + "; ".join(
        f"`{placements}`: {beside(data['alpa'], placements, ratio)}" for placements in ("S,R", "S,R,P")
    )


def soybean(data: Any) -> str:
    """Say what the plans move beside the text's hybrid, in cuts by two."""
    (hybrid,) = {row["moved"] for row in data["accounts"][:3] if row["scheme"] == "hybrid"}
    moved = {
        row["placements"]: row["bytes"]
        for row in data["plans"]
        if row["searcher"] == "recursive" and row["ways"] == [2, 2, 2, 2]
    }
    listed = ", ".join(f"`{placements}` {moved[placements] / 1e6:.1f} MB" for placements in SEVERAL)
    return f"its hybrid of the products alone {hybrid / 1e6:.1f} MB; `recursive`, all of training: {listed}"


def operators(data: Any) -> str:
    """Say what is described and verified."""
    aten, verified = data["counts"]["core ATen 2.11"], read_verification()
    rows = data["catalogs"]["core ATen 2.11"].values()
    with_kernel = verified["soundness"]["with a kernel"]
    killed, mutants = (sum(counts[which] for counts in verified["mutants"].values()) for which in (0, 1))
    return (
        f"{with_kernel['operators']} in the catalog, each strategy split on "
        f"{with_kernel['fewest shapes of a strategy']} shapes; {killed:,} of {mutants:,} mutants found; of "
        f"{aten['operators']} core ATen operators {aten['described']} are described, "
        f"{sum(row.get('graph', False) for row in rows)} in a training graph"
    )


def predictions(data: Any) -> str:
    """Say how far predictions are from runs that others published, and from which nothing was fitted."""
    said = []
    for measured_set in data["sets"]:
        if (scores := measured_set["scores"].get("test")) is None:
            continue
        kind = "time" if scores["time"]["rows"] else "memory"
        seen = "*" if any("in sight" in assumed for assumed in measured_set["assumed"]) else ""
        said.append(
            f"{measured_set['set']}{seen} {scores[kind]['error_mean']:.1%}{'' if kind == 'time' else ' of bytes'}"
        )
    return (
        f"mean error on rows that no figure was fitted on (*: rules were written with them in sight): {', '.join(said)}"
    )


FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("steps of published runs, predicted", "scoreboard", predictions),
    ("decisions", "decisions", decisions.said),
    ("`recursive`, graph to plan", "scaling", recursion),
    ("growth with depth, 1 to 16 times", "scaling", growth),
    ("`joint`, tied graphs", "search_time", lambda data: joint(data, "tied")),
    ("`joint`, untied graphs", "search_time", lambda data: joint(data, "untied")),
    ("`joint` beside toulbar2, an exact solver of others", "certificate", lambda data: agreed(data["rows"])),
    ("against the Tofu authors' prototype, which has `S`", "other_planners", prototype),
    ("against Alpa's ILP, three MLPs", "other_planners", alpa),
    ("SoyBean's five layers, 16 workers", "soybean_example", soybean),
    ("operators", "operator_coverage", operators),
)
"""What is measured, by which experiment, and how it is said."""


def pages() -> Pages:
    """Return the README's table of figures."""
    rows = [
        [what, figure(read_data(HERE / name)), f"[{name}](results/{name}/README.md)"] for what, name, figure in FIGURES
    ]
    return {"figures": table(["what", "figure", "experiment"], rows)}
