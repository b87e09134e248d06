"""Decisions for models of the zoo on machines, beside what people would do anyway.

    python -m results.decisions.run [--minutes M] [--resume]

writes data.json and the tables in README.md. Every model is decided on 8 and 64 devices of every machine, language
models of published sizes on 16 384, too; what people would do is the best micro-batch of data parallelism, of FSDP, and
of what Megatron-LM's users are told: tensor parallel in a node as far as a layer needs, stages beyond.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

import planner
from planner.errors import GraphError, PlanError
from planner.graph.ir import Graph
from planner.models import families, llama, sequences
from planner.parallel import Parallel
from results.experiment import OverTimeError, Pages, cpu_limit, machine, publish, read_data, table
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.record import Decision, RankedCandidate
from tensor_partitioner.projection import project

HERE = Path(__file__).parent
BUDGET_S = 600.0

SEQUENCES = "(", "transformer", "encoder", "llama"
"""How patterns of models' names begin whose samples are sequences."""

TOKENS, OTHERS, MANY = {"batch": 256}, {"batch": 512}, {"batch": 2048}
"""Samples of a step: of models whose samples are sequences, of others, and on the largest machine."""

PUBLISHED = (*sequences.SIZES, *llama.SIZES, *llama.EXPERTS)
"""Language models of published sizes."""

MODELS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(PUBLISHED, TOKENS),
    **{family.example: TOKENS if family.pattern.startswith(SEQUENCES) else OTHERS for family in families().values()},
}
"""Every model of the zoo that has a name, and of families of any size the one that the zoo names as an example."""

IMPORTED: dict[str, dict[str, Any]] = {
    **{f"examples/{name}.py": TOKENS for name in ("bert", "gpt", "lstm", "mixture")},
    **{f"examples/{name}.py": OTHERS for name in ("mlp", "resnet50", "unet", "vit")},
}
"""Modules of PyTorch, in their own precision."""

MACHINES: dict[str, Mapping[int, str]] = {
    "p2": {8: "p2.8xlarge"},
    **{
        family: {8: node, 64: f"{family}-nodes-8"}
        for family, node in (("p4d", "p4d.24xlarge"), ("hgx-h100", "hgx-h100"), ("p6-b200", "p6-b200.48xlarge"))
    },
}
"""Machines by how many devices they have."""

LARGEST = 16_384
"""Devices on which language models of published sizes are decided, too, in nodes of `hgx-h100`."""


def cells(models: Iterable[str]) -> list[tuple[str, str, int]]:
    """Return every model on every number of devices, in an order drawn by a seed: so many first ones are a sample."""
    every = [(model, family, count) for model in models for family, of in MACHINES.items() for count in of]
    every += [(model, "hgx-h100", LARGEST) for model in models if model in PUBLISHED]
    random.Random(0).shuffle(every)
    return every


CELLS = [cell for pair in zip_longest(cells(MODELS), cells(IMPORTED)) for cell in pair if cell is not None]

MOST_CPU_S = 120.0
"""Of a cell, after which it is given up and counted so."""

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

Row = dict[str, Any]


def has_room(decision: Decision, candidate: RankedCandidate) -> bool:
    """Return True if a candidate leaves memory for 90% of published runs."""
    return candidate.needed_bytes * decision.memory_margin <= candidate.capacity_bytes


def by_hand(decision: Decision) -> dict[str, RankedCandidate]:
    """Return what people would do anyway, the best of each with memory for 90% of published runs."""
    best: dict[str, RankedCandidate] = {}
    for candidate in decision.candidates:
        parallel = Parallel.read(candidate.parallel)
        if parallel is not None and has_room(decision, candidate) and (name := _of_hand(parallel)):
            best.setdefault(name, candidate)
    return best


def _of_hand(parallel: Parallel) -> str:
    """Return which of the ways that people would take a candidate is; "" for none."""
    if parallel.dp == parallel.workers:
        return {0: "DDP", 3: "FSDP"}.get(parallel.zero, "")
    return "Megatron" if parallel.tp > 1 and parallel.zero <= 1 and parallel.cp == 1 else ""


def machine_of(family: str, count: int) -> str:
    """Return the machine of a family with so many devices."""
    return f"{family}-nodes-{count // 8}" if count == LARGEST else MACHINES[family][count]


@lru_cache(len(IMPORTED))
def source_of(model: str) -> tuple[str | Graph, dict[str, Any]]:
    """Return a model and its options; a module of PyTorch is imported once."""
    if model in IMPORTED:
        return planner.model(f"{HERE.parents[1] / model}:make", **IMPORTED[model]), {}
    return model, MODELS[model]


def decided(model: str, family: str, count: int) -> Row:
    """Return a row: the decision, and what others come to."""
    cell, started = {"model": model, "machine": family, "devices": count}, time.process_time()
    try:
        with cpu_limit(MOST_CPU_S):
            source, options = source_of(model)
            if count == LARGEST:
                options = MANY
            decision = decide(source, machine_of(family, count), budget_s=BUDGET_S, **options)
    except (PlanError, GraphError) as error:
        return {**cell, "refused": str(error)}
    except OverTimeError:
        return {**cell, "refused": f"given up after {MOST_CPU_S:g} s of CPU"}
    best, others = decision.best, by_hand(decision)
    print(*cell.values(), decision.verdict, flush=True)
    return {
        **cell,
        "fits": best.fits,
        "best": best.name,
        "family": best.family,
        "seconds": best.seconds_per_step,
        "gap": decision.search.gap,
        "considered": decision.search.considered,
        "projected": decision.search.projected,
        "by_hand": {name: [candidate.name, candidate.seconds_per_step] for name, candidate in others.items()},
        "one_device_s": decision.one_device_s,
        "least_named": min(
            candidate.seconds_per_step
            for candidate in decision.candidates
            if has_room(decision, candidate) >= has_room(decision, best) and candidate.fits >= best.fits
        ),
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
    alone = sum(row["one_device_s"] is not None for row in fitting)
    proved, cpu = sum(not row["gap"] for row in rows), sorted(row["cpu_s"] for row in rows)
    return (
        f"{len(rows)} decisions of {data['cells']}, {proved} of them proved, in {cpu[len(cpu) // 2]:.3g} s of CPU in "
        f"the median and {cpu[-1]:.3g} s at most. Something fits in {len(fitting)}. A candidate that leaves as much "
        f"memory was predicted faster in {named_faster}. Relative to the best of DDP, FSDP and tensor parallelism by "
        f"hand, where one of them fits ({len(ratios)}), a step takes {min(ratios):.2f} to {max(ratios):.2f} times as "
        f"long, {sorted(ratios)[len(ratios) // 2]:.2f} in the median. One device is as fast as all in "
        f"{alone or 'none'}."
    )


def pages(data: Any) -> Pages:
    """Make the tables."""
    rows = [row for row in data["decisions"] if "refused" not in row]
    return {
        "said": said(data),
        "decisions": table(
            ("model", "machine", "devices", "recommended", "a step", "DDP", "FSDP", "tensor, by hand", "gap", "CPU, s"),
            [_row(row) for row in sorted(rows, key=itemgetter("model", "machine", "devices"))],
        ),
        "refused": "\n".join(
            f"- {row['model']} on {row['devices']} devices of {row['machine']}: {row['refused']}"
            for row in data["decisions"]
            if "refused" in row
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
        "machine": f"CPU seconds of {data['machine']}.",
    }


def _row(row: Row) -> tuple[object, ...]:
    def other(name: str) -> str:
        return f"{row['by_hand'][name][1] / row['seconds']:.2f}" if name in row["by_hand"] else "-"

    best = f"{row['family']}: `{row['best']}`" if row["fits"] else "nothing fits"
    others = map(other, ("DDP", "FSDP", "Megatron"))
    step = _seconds(row["seconds"]) if row["fits"] else "-"
    return row["model"], row["machine"], row["devices"], best, step, *others, f"{row['gap']:.1%}", row["cpu_s"]


def _seconds(value: float) -> str:
    return f"{value:.4g} s" if value >= 1 else f"{value * 1e3:.4g} ms"


def main(arguments: Sequence[str] | None = None) -> None:
    """Decide everything, or as much as there is time for; what is there is kept where that is asked."""
    parser = argparse.ArgumentParser(prog="python -m results.decisions.run")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so many")
    parser.add_argument("--resume", action="store_true", help="go on with the cells that data.json has not")
    options = parser.parse_args(arguments)
    began, seconds = time.monotonic(), 60 * options.minutes
    data: dict[str, Any] = read_data(HERE) if options.resume else {"decisions": []}
    data |= {"machine": machine(), "cells": len(CELLS)}
    if "known" not in data:
        data["known"] = [known(name) for name in KNOWN]
    done = {(row["model"], row["machine"], row["devices"]) for row in data["decisions"]}
    for cell in CELLS:
        if cell not in done and time.monotonic() < began + seconds:
            data["decisions"].append(decided(*cell))
            (HERE / "data.json").write_text(json.dumps(data, indent=1) + "\n")
    publish(HERE, data, pages)


if __name__ == "__main__":
    main()
