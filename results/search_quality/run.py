"""The quality of plans (Tofu's Figure 10): iterations under the plans of several searches, on the paper's machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import planner
from results.experiment import Pages, publish, read_published, table
from results.pictures import Bar, Panel, draw_bars
from results.searchers import TOFUS
from results.throughput import HALVES, MACHINE, Row
from simulator.report import plan_program
from simulator.simulation import simulated
from topologies import load_topology

HERE = Path(__file__).parent
PUBLISHED = read_published(HERE)
CASES = {"rnn-4-8k": 512, "wresnet-152-10": 8}
SEARCHES = (*TOFUS, "recursive", "joint")
PLACEMENTS = "S"
WAYS = (2, 2, 2)
COLOURS = dict(zip(SEARCHES, ("#8e6bb0", "#d98b2b", "#c0392b", "#7fb069", "#34699a", "#555555"), strict=True))
GIGABYTE = 1e9


def row(model: str, search: str) -> Row:
    """Search a plan of cuts by two, as the paper's are, and simulate an iteration on both variants of the machine."""
    graph = planner.model(model, batch=CASES[model])
    plan = planner.plan(graph, ways=WAYS, searcher=search, placements=PLACEMENTS)
    deployment = plan_program(plan, load_topology(MACHINE), 1)
    simulation, other = (simulated(deployment.program, load_topology(machine)) for machine in (MACHINE, HALVES))
    return {
        "model": model,
        "batch": CASES[model],
        "search": search,
        "winner": plan.search.winner,
        "bytes": plan.total_bytes,
        "seconds": simulation.seconds,
        "seconds_without_communication": simulation.seconds_without_communication,
        "halves_seconds": other.seconds,
        "arena_bytes": max(worker.arena_bytes for worker in deployment.program.workers),
        "fits": not simulation.overfull,
    }


def measured() -> dict[str, Any]:
    """Measure every search on every model."""
    return {"rows": [row(model, search) for model in CASES for search in SEARCHES]}


def pages(data: Any) -> Pages:
    """Return the page and the picture."""
    return {"verdict": verdict(data["rows"]), "rows": rows_table(data["rows"]), "quality.svg": picture(data["rows"])}


def rows_table(rows: list[Row]) -> str:
    """Show every plan."""
    columns = ["model, batch", "search", "GB moved", "s per iteration", "without communication", "halves", "arena, GB"]
    return table(
        [*columns, "memory"],
        [
            [
                f"{plan['model']}, {plan['batch']}",
                plan["search"],
                f"{plan['bytes'] / GIGABYTE:.1f}",
                f"{plan['seconds']:.2f}",
                f"{plan['seconds_without_communication']:.2f}",
                f"{plan['halves_seconds']:.2f}",
                f"{plan['arena_bytes'] / GIGABYTE:.1f}",
                "fits" if plan["fits"] else "out of memory",
            ]
            for plan in rows
        ],
    )


def verdict(rows: list[Row]) -> str:
    """Say how the recursion's iterations compare with those of the other searches."""
    return "\n".join(_verdicts(rows))


def _verdicts(rows: list[Row]) -> Iterator[str]:
    for model in CASES:
        by = {plan["search"]: plan for plan in rows if plan["model"] == model}
        others = {name: by[name]["seconds"] / by["recursive"]["seconds"] - 1 for name in SEARCHES if name in by}
        listed = ", ".join(f"{name} {share:+.1%}" for name, share in others.items() if name != "recursive")
        full = [name for name, plan in by.items() if not plan["fits"]]
        memory = f"; out of memory: {', '.join(full)}" if full else "; all fit in memory"
        yield f"- {model}: an iteration takes, beside `recursive`'s, {listed}{memory}"


def picture(rows: list[Row]) -> str:
    """Draw seconds per iteration, what communication adds paler."""
    panels = [
        Panel(
            f"{model}, batch {CASES[model]}",
            {plan["search"]: [_bar(plan)] for plan in rows if plan["model"] == model},
            "search",
            "seconds per iteration",
        )
        for model in CASES
    ]
    note = "paler: what communication adds; dashed: out of memory"
    return draw_bars(
        "Iterations under the plans of several searches, 8 GPUs of a p2.8xlarge (Tofu, Figure 10)",
        panels,
        COLOURS,
        note=note,
    )


def _bar(plan: Mapping[str, Any]) -> Bar:
    silent = plan["seconds_without_communication"]
    return Bar(plan["search"], silent, plan["seconds"] - silent, fits=plan["fits"], label=f"{plan['seconds']:.2f}")


if __name__ == "__main__":
    publish(HERE, measured(), pages)
