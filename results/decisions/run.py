"""Decisions for models of the zoo and examples on machines, beside what people would do anyway.

    python -m results.decisions.run

writes data.json and the tables in README.md. Every model is decided on every machine that has as many devices; what
people would do is the best micro-batch of data parallelism, of FSDP, and of what Megatron-LM's users are told: tensor
parallel in a node as far as a layer needs, stages beyond.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from planner.errors import GraphError, PlanError
from planner.parallel import Parallel
from results.experiment import Pages, machine, publish, table
from simulator.projection.cluster import Cluster, cluster
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.candidates import Shape, candidates
from tensor_partitioner.decision.record import Candidate, Decision
from tensor_partitioner.projection import project, project_source
from tensor_partitioner.replicas import ZooModel, with_few_layers

HERE = Path(__file__).parent
BUDGET_S = 30.0

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"batch": 256},
    "transformer-24-2048": {"batch": 256},
    "llama-3.1-8b": {"batch": 256},
    "llama-2-70b": {"batch": 256},
    "mixtral-8x7b": {"batch": 256},
    "vgg-16": {"batch": 512},
    "mlp-4-8192": {"batch": 512},
}
MACHINES = ("hgx-h100", "p4d.24xlarge", "dgx-1-v100", "p2.8xlarge", "hgx-h100-nodes-2", "p4d-nodes-8")

KNOWN: dict[str, dict[str, Any]] = {
    "GPT-3 175B on 1 024 A100 (Narayanan and others, 2021)": {
        "model": "gpt-3-175b", "machine": "dgx-a100-pod-128", "batch": 1536,
        "parallel": ("tp=8,pp=8,dp=16,sp,micro-batch=1", "tp=8,pp=16,dp=8,sp,micro-batch=1"),
    },
    "BLOOM 176B on 384 A100 (BigScience, 2022)": {
        "model": "bloom-176b", "machine": "dgx-a100-pod-48", "batch": 2048,
        "parallel": ("tp=4,pp=12,dp=8,zero=1,micro-batch=2",),
    },
    "Llama 2 70B on 64 H100": {
        "model": "llama-2-70b", "machine": "hgx-h100-nodes-8", "batch": 256,
        "parallel": ("tp=8,pp=8,sp,micro-batch=1", "tp=4,pp=4,dp=4,sp,zero=1,micro-batch=1", "dp=64,zero=3"),
    },
    "Llama 3 405B on 16 384 H100 (Grattafiori and others, 2024)": {
        "model": "llama-3.1-405b", "machine": "hgx-h100-nodes-2048", "batch": 2048,
        "parallel": ("tp=8,pp=16,dp=128,sp,zero=1,micro-batch=1",),
    },
}  # fmt: skip
"""What was chosen by those who had the machines; any schedule and recomputation with it."""

CASES = 100
_TOKENS = {"heads": 4, "sequence": 32, "vocabulary": 256, "dtype": "mixed", "optimizer": "adam"}
SMALL: dict[str, dict[str, Any]] = {
    "transformer-4-64": {**_TOKENS, "flash": True},
    "transformer-4-128": _TOKENS,
    "transformer-6-64": {**_TOKENS, "sequence": 64, "tied": False},
    "transformer-2-256": {**_TOKENS, "vocabulary": 1024},
    "mlp-4-512": {"dtype": "mixed", "optimizer": "adam"},
}
SMALL_MACHINES = ("hgx-h100", "p4d.24xlarge", "dgx-a100", "p4d-nodes-2")

Row = dict[str, Any]


def by_hand(decision: Decision) -> dict[str, Candidate]:
    """Return what people would do anyway, the best of each that fits."""
    found: dict[str, Candidate] = {}
    for candidate in decision.candidates:
        parallel = Parallel.read(candidate.parallel)
        if parallel is not None and candidate.fits and (name := _of_hand(parallel)):
            found.setdefault(name, candidate)
    return found


def _of_hand(parallel: Parallel) -> str:
    """Return which of the ways that people would take a candidate is; "" for none."""
    if parallel.dp == parallel.workers:
        return {0: "DDP", 3: "FSDP"}.get(parallel.zero, "")
    return "Megatron" if parallel.tp > 1 and parallel.zero <= 1 and parallel.cp == 1 else ""


def decided(model: str, machine_name: str) -> Row:
    """Return a row: the decision, and what others come to."""
    started = time.process_time()
    try:
        decision = decide(model, machine_name, budget_s=BUDGET_S, **MODELS[model])
    except (PlanError, GraphError) as error:
        return {"model": model, "machine": machine_name, "refused": str(error)}
    best, others = decision.best, by_hand(decision)
    print(model, machine_name, decision.verdict, flush=True)
    return {
        "model": model,
        "machine": machine_name,
        "fits": best.fits,
        "best": best.name,
        "family": best.family,
        "seconds": best.seconds_per_step,
        "gap": decision.search.gap,
        "considered": decision.search.considered,
        "projected": decision.search.projected,
        "by_hand": {name: [one.name, one.seconds_per_step] for name, one in others.items()},
        "least_named": min(one.seconds_per_step for one in decision.candidates if one.fits or not best.fits),
        "cpu_s": round(time.process_time() - started, 2),
    }


def known(name: str) -> Row:
    """Return a row: a choice that is known to be good, beside our own best."""
    about, started = KNOWN[name], time.process_time()
    decision = decide(about["model"], about["machine"], batch=about["batch"], budget_s=BUDGET_S)
    print(name, decision.verdict, flush=True)
    options = {"dtype": "mixed", "optimizer": "adamw"}
    steps = []
    for text in about["parallel"]:
        for more in _variants(text):
            parallel = Parallel.read(text + more)
            assert parallel is not None
            try:
                step = project(
                    about["model"], options, batch=about["batch"], parallel=parallel,
                    machine=about["machine"], stack="compile",
                )  # fmt: skip
            except PlanError:
                continue
            steps.append((not step.fits, step.seconds, text + more))
    overfull, seconds, chosen = min(steps)
    return {
        "name": name,
        "chosen": chosen,
        "chosen_fits": not overfull,
        "seconds": seconds,
        "best": decision.best.name,
        "best_seconds": decision.best.seconds_per_step,
        "gap": decision.search.gap,
        "cpu_s": round(time.process_time() - started, 2),
    }


def _variants(text: str) -> Iterator[str]:
    schedules = ("", *(f",schedule={s}" for s in ("zero-bubble", "interleaved:2", "interleaved:3", "interleaved:5")))
    for schedule in schedules if "pp=" in text else ("",):
        for recompute in ("", ",recompute=full"):
            yield schedule + recompute


def said(data: Any) -> str:
    """Say how many decisions there are, and how they stand beside what people would do."""
    rows = [row for row in data["decisions"] if "refused" not in row]
    fitting = [row for row in rows if row["fits"]]
    ratios = [row["seconds"] / min(s for _, s in row["by_hand"].values()) for row in fitting if row["by_hand"]]
    named_faster = sum(row["least_named"] < row["seconds"] * (1 - 1e-12) for row in fitting)
    return (
        f"{len(rows)} decisions, of which in {len(fitting)} something fits. In {named_faster} of these anything that "
        "is named, and fits, is predicted to be faster than what is recommended. Beside the best of DDP, FSDP and "
        f"tensor parallelism by hand, where one of them fits ({len(ratios)}), a step takes {min(ratios):.2f} to "
        f"{max(ratios):.2f} times as long, {sorted(ratios)[len(ratios) // 2]:.2f} in the median."
    )


def exhausted(count: int) -> Row:
    """Decide small cases, drawn by a seed, and project every candidate of each, whatever its bound."""
    every = [*product(SMALL, SMALL_MACHINES, (16, 32, 64, 128), ("compile", "eager", "megatron"))]
    cases, faster, projected, started = random.Random(0).sample(every, count), 0, 0, time.process_time()
    for name, machine_name, batch, stack in cases:
        options = SMALL[name]
        decision = decide(name, machine_name, batch=batch, stack=stack, budget_s=600, **options)
        model, whole = ZooModel.of(name, options), cluster(machine_name)
        for candidate in candidates(_shape(name, whole, batch)):
            try:
                step = project_source(model, batch, candidate, whole, stack)
            except (PlanError, GraphError):
                continue
            projected += 1
            faster += step.fits and step.seconds < decision.best.seconds_per_step * (1 - 1e-12)
        print(name, machine_name, batch, stack, projected, faster, flush=True)
    return {"cases": count, "projected": projected, "faster": faster, "cpu_s": round(time.process_time() - started)}


def _shape(name: str, machine_cluster: Cluster, batch: int) -> Shape:
    options = SMALL[name]
    layers = with_few_layers(name, options)[2] or 0
    stores = layers > 0 and not options.get("flash", False)
    per_node = machine_cluster.per_node if machine_cluster.per_node > 1 else machine_cluster.devices
    return Shape(machine_cluster.devices, per_node, batch, layers, options.get("sequence", 1), stores)


def pages(data: Any) -> Pages:
    """Make the tables."""
    rows = [row for row in data["decisions"] if "refused" not in row]
    return {
        "said": said(data),
        "decisions": table(
            ("model", "machine", "recommended", "a step", "DDP", "FSDP", "tensor, by hand", "gap", "CPU, s"),
            [_row(row) for row in rows],
        ),
        "refused": "\n".join(
            f"- {row['model']} on {row['machine']}: {row['refused']}" for row in data["decisions"] if "refused" in row
        )
        or "None.",
        "known": table(
            ("who", "chosen, with its best schedule", "a step", "our best", "a step", "chosen / best", "gap", "CPU, s"),
            [
                (
                    row["name"],
                    f"`{row['chosen']}`" + ("" if row["chosen_fits"] else " (does not fit)"),
                    f"{row['seconds']:.4g} s",
                    f"`{row['best']}`",
                    f"{row['best_seconds']:.4g} s",
                    f"{row['seconds'] / row['best_seconds']:.3f}",
                    f"{row['gap']:.1%}",
                    row["cpu_s"],
                )
                for row in data["known"]
            ],
        ),
        "exhausted": (
            f"Of {data['exhausted']['cases']} small cases, drawn by a seed, every candidate was projected whatever its "
            f"bound, {data['exhausted']['projected']} in all: {data['exhausted']['faster']} of them are faster than "
            "what is recommended."
        ),
        "machine": f"CPU seconds of {data['machine']}.",
    }


def _row(row: Row) -> tuple[object, ...]:
    def other(name: str) -> str:
        return f"{row['by_hand'][name][1] / row['seconds']:.2f}" if name in row["by_hand"] else "-"

    best = f"{row['family']}: `{row['best']}`" if row["fits"] else "nothing fits"
    others = map(other, ("DDP", "FSDP", "Megatron"))
    step = _seconds(row["seconds"]) if row["fits"] else "-"
    return row["model"], row["machine"], best, step, *others, f"{row['gap']:.1%}", row["cpu_s"]


def _seconds(value: float) -> str:
    return f"{value:.4g} s" if value >= 1 else f"{value * 1e3:.4g} ms"


def main() -> None:
    """Decide everything."""
    data = {
        "machine": machine(),
        "decisions": [decided(model, name) for model in MODELS for name in MACHINES],
        "known": [known(name) for name in KNOWN],
        "exhausted": exhausted(CASES),
    }
    publish(HERE, data, pages)


if __name__ == "__main__":
    main()
