"""What control dependencies, fused and delayed fetches, spread reductions and a static arena save (Tofu, Section 6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from planner.models import build
from planner.plans.plan import Plan, single_worker
from planner.program.lower import lower
from planner.program.tasks import WorkerProgram
from planner.search import SearchOptions, search
from results.experiment import Pages, publish, table
from results.tofu_memory.caching import reserved_bytes
from results.tofu_memory.gathering import GatheringPlan
from results.tofu_memory.rules import Fetching, Reuse, peak_live_bytes, requests
from simulator.simulation import simulated
from topologies import load_topology

HERE = Path(__file__).parent
WAYS, PLACEMENTS = (2, 2, 2), "S"
WORKERS = 8
MODELS = {"wresnet-50-4": 64, "rnn-6-4k": 64, "transformer-12-768": 64}
"""Batch sizes by model."""

MACHINE = "p2.8xlarge"
GIGABYTE = 10**9
REUSE = {
    Reuse.ORDER: "a common order of all tasks",
    Reuse.OPERATORS: "dependencies as between operators before splitting (Tofu's)",
    Reuse.DATA: "dependencies by a worker's own data",
}
FETCHING = {Fetching.FUSED: "fused", Fetching.STAGED: "staged (the program)", Fetching.SPLIT: "a buffer per piece"}

Row = dict[str, Any]


def measured(model: str, batch: int) -> Row:
    """Plan a model and say what its fullest worker takes under all rules, in bytes."""
    plan = search(build(model, batch=batch), SearchOptions(ways=WAYS, placements=PLACEMENTS))
    worker = max(lower(plan).workers, key=lambda program: program.arena_bytes)
    return {
        "variants": list(variants(plan)),
        "model": model,
        "batch": batch,
        "alone": lower(single_worker(plan)).workers[0].arena_bytes,
        "arena": worker.arena_bytes,
        "rules": [under(worker, reuse, fetching) for reuse in Reuse for fetching in Fetching],
    }


def variants(plan: Plan) -> Iterable[Row]:
    """Lower and simulate a plan with what no allocator decides left out, or something else done, one at a time."""
    gathering = GatheringPlan(**{field.name: getattr(plan, field.name) for field in fields(plan)})
    for name, variant, prefetch in (
        ("as it is", plan, 1),
        ("fetches as early as can be", plan, len(plan.graph.nodes)),
        ("reductions by one worker", gathering, 1),
    ):
        program = lower(variant, prefetch)
        yield {
            "variant": name,
            "arenas": [worker.arena_bytes for worker in program.workers],
            "bytes": int(program.bytes.sum()),
            "seconds": simulated(program, load_topology(MACHINE)).seconds,
        }


def under(worker: WorkerProgram, reuse: Reuse, fetching: Fetching) -> Row:
    """Say what a worker takes under one rule: bytes alive at most, and in a caching allocator's segments."""
    asked = requests(worker, reuse, fetching)
    return {
        "reuse": reuse.value,
        "fetching": fetching.value,
        "alive": peak_live_bytes(asked),
        "caching": reserved_bytes(asked),
    }


def bytes_under(row: Row, reuse: Reuse, fetching: Fetching, key: str = "caching") -> int:
    """Return a row's bytes under one rule."""
    return int({(rule["reuse"], rule["fetching"]): rule[key] for rule in row["rules"]}[reuse.value, fetching.value])


def rules_table(rows: list[Row], key: str) -> str:
    """Render bytes by rule (lines) and model (columns), over those of the static arena."""

    def cell(row: Row, reuse: Reuse, fetching: Fetching) -> str:
        nbytes = bytes_under(row, reuse, fetching, key)
        return f"{nbytes / GIGABYTE:.2f} ({nbytes / row['arena']:.2f})"

    return table(
        ["memory is used again by", "fetches", *(f"{row['model']}, batch {row['batch']}" for row in rows)],
        [
            (after, by, *(cell(row, reuse, fetching) for row in rows))
            for reuse, after in REUSE.items()
            for fetching, by in FETCHING.items()
        ],
    )


def arenas_table(rows: list[Row]) -> str:
    """Render the static arenas beside an eighth of what one worker takes."""
    return table(
        ["model", "an eighth of one worker's arena, GB", "arena, GB", "ratio"],
        [
            (
                f"{row['model']}, batch {row['batch']}",
                f"{row['alone'] / WORKERS / GIGABYTE:.2f}",
                f"{row['arena'] / GIGABYTE:.2f}",
                f"{row['arena'] * WORKERS / row['alone']:.2f}",
            )
            for row in rows
        ],
    )


def variants_table(rows: list[Row]) -> str:
    """Render arenas, bytes and seconds of what is left out or taken besides."""
    lines = []
    for row in rows:
        asis = row["variants"][0]
        for variant in row["variants"]:
            arenas = variant["arenas"]
            lines.append(
                [
                    f"{row['model']}, batch {row['batch']}",
                    variant["variant"],
                    f"{max(arenas) / GIGABYTE:.2f} ({max(arenas) / max(asis['arenas']) - 1:+.1%})",
                    f"{sum(arenas) / GIGABYTE:.2f}",
                    f"{variant['bytes'] / GIGABYTE:.2f}",
                    f"{variant['seconds']:.2f} ({variant['seconds'] / asis['seconds'] - 1:+.1%})",
                ]
            )
    return table(["model", "program", "fullest worker, GB", "all workers, GB", "GB moved", f"s on {MACHINE}"], lines)


def savings(rows: list[Row]) -> str:
    """Say what each of the two saves of what an allocator takes with neither, and what the program's order does."""
    without = [bytes_under(row, Reuse.DATA, Fetching.SPLIT) for row in rows]

    def line(name: str, reuse: Reuse, fetching: Fetching) -> tuple[str, ...]:
        return (
            name,
            *(f"{1 - bytes_under(row, reuse, fetching) / all_:.0%}" for row, all_ in zip(rows, without, strict=True)),
        )

    return table(
        ["of what is taken with neither", *(row["model"] for row in rows)],
        [
            line("control dependencies alone save", Reuse.OPERATORS, Fetching.SPLIT),
            line("fused fetches alone save", Reuse.DATA, Fetching.FUSED),
            line("both save", Reuse.OPERATORS, Fetching.FUSED),
            line("the program, a common order and staging, saves", Reuse.ORDER, Fetching.STAGED),
            (
                "its static arena saves",
                *(f"{1 - r['arena'] / all_:.0%}" for r, all_ in zip(rows, without, strict=True)),
            ),
        ],
    )


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    rows = data["rows"]
    blocks = {key: rules_table(rows, key) for key in ("caching", "alive")}
    blocks |= {"arenas": arenas_table(rows), "savings": savings(rows), "variants": variants_table(rows)}
    return blocks


if __name__ == "__main__":
    publish(HERE, {"rows": [measured(model, batch) for model, batch in MODELS.items()]}, pages)
