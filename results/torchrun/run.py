"""Ranks of torchrun: seconds of steps beside PyTorch's, models of the sweep, profiles.

`python -m results.torchrun.run PART...` measures some parts anew: steps, sweep, profiled; sample adds to the sweep.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from planner.report.profiles import EXPOSED, IDLE, STEP, measured_parts, predicted_parts, read_profile
from planner.report.profiles.profile import mean_of
from results.experiment import ROOT, Pages, machine, publish, read_data, table

HERE = Path(__file__).parent
RANKS = 2
RUNS, STEPS, SWEEP_RANKS = 9, 45, (1, 2, 4)
CLOSE = 1e-6
COMMAND = (sys.executable, "-m", "tensor_partitioner")
MODULE = "examples/pytorch_model.py:make"
PROFILED = {"DDP": "dp=2", "FSDP2": "dp=2,zero=3"}
ATTEMPTS = 20
FIFTH = 0.2


def on_ranks(ranks: int, *command: object, **environment: str) -> list[Any]:
    """Run a module on ranks of this host; return the JSON of every line that its rank 0 prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return printed(*launcher, "-m", *command, **environment)


def printed(*command: object, **environment: str) -> list[Any]:
    """Run a command; return the JSON of every line that it prints."""
    line = [*map(str, command)]
    done = subprocess.run(
        line, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    return [json.loads(text) for text in done.stdout.splitlines() if text.startswith(("{", "["))]


def about() -> dict[str, Any]:
    """Say where and when it is measured."""
    return {"machine": machine(), "torch": version("torch"), "load": os.getloadavg()[0]}


def steps() -> dict[str, Any]:
    """Measure the CPU time of steps beside FSDP2's and DDP's."""
    rows = []
    for ranks, names in {1: ("resnet18", "unet"), 2: ("gpt", "resnet18", "unet")}.items():
        with tempfile.TemporaryDirectory() as folder:
            printed(sys.executable, "-m", "results.torchrun.steps", "plan", ranks, folder, *names)
            for name in names:
                path = Path(folder) / f"{name}.json"
                runs = [on_ranks(ranks, "results.torchrun.steps", STEPS, path)[0] for _ in range(RUNS)]
                runs.sort(key=itemgetter("ratio"))
                rows.append(runs[RUNS // 2] | {"ratios": [run["ratio"] for run in runs]})
    return about() | {"rounds": STEPS, "runs": RUNS, "rows": rows}


def sweep() -> dict[str, Any]:
    """Train a sample of the sweep's models on one, two and four ranks, in place of those before."""
    return sampled({"seeds": read_data(HERE)["sweep"]["seeds"], "planned": [], "trained": {}})


def sample() -> dict[str, Any]:
    """Train another sample, which adds up with those before."""
    return sampled(read_data(HERE)["sweep"])


def sampled(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known before and of the next sample; rows of models not drawn again stay."""
    seed = max(before["seeds"]) + 1
    with tempfile.TemporaryDirectory() as folder:
        chosen = printed(sys.executable, "-m", "results.torchrun.sweep", "plan", folder, seed, *SWEEP_RANKS)
        trained = {str(ranks): on_ranks(ranks, "results.torchrun.sweep", folder) for ranks in SWEEP_RANKS}
    rows = {ranks: by_model(before["trained"].get(ranks, ())) | by_model(trained[ranks]) for ranks in trained}
    return about() | {
        "seeds": [*before["seeds"], seed],
        "planned": [*(by_model(before["planned"]) | by_model(chosen)).values()],
        "trained": {ranks: [*models.values()] for ranks, models in rows.items()},
    }


def by_model(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return rows by the names of their models."""
    return {row["model"]: row for row in rows}


def profiled() -> dict[str, Any]:
    """Calibrate this machine for plans of a GPT, and profile DDP and FSDP2 of it beside what they are predicted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plans = {kind: folder / f"{kind}.plan.json" for kind in PROFILED}
        for kind, parallel in PROFILED.items():
            printed(*COMMAND, "plan", MODULE, "--parallel", parallel, "-o", plans[kind])
        here = folder / "here.yaml"
        calibrating = ("--only-plans", "--threads", 1, "-o", here)
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS)
        printed(*launcher, "-m", *COMMAND[2:], "calibrate", *plans.values(), *calibrating)
        on_ranks(RANKS, "results.torchrun.profiled", folder, ATTEMPTS)
        rows = {}
        for kind, plan in plans.items():
            predicted = folder / f"{kind}.predicted.json"
            printed(*COMMAND, "simulate", plan, "--topo", here, "--tasks", "--json", predicted)
            each = [
                mean_of([read_profile(folder / f"{kind}.{attempt}.{rank}.json") for rank in range(RANKS)])
                for attempt in range(ATTEMPTS)
            ]
            fastest = min(each, key=attrgetter("seconds"))
            rows[kind] = {"predicted": predicted_parts(predicted), "profiled": measured_parts(fastest)}
        return about() | {"attempts": ATTEMPTS, "rows": rows}


PARTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "steps": steps,
    "sweep": sweep,
    "sample": sample,
    "profiled": profiled,
}


def steps_table(rows: list[dict[str, Any]]) -> str:
    """Render the CPU time of steps."""
    against = {"gpt": "FSDP2"}
    return table(
        ["model", "ranks", "ours (ms)", "PyTorch (ms)", "ratio", "in all runs", "our bytes"],
        (
            [
                f"`{row['model']}`",
                row["ranks"],
                f"{1e3 * row['ours']:.0f}",
                f"{1e3 * row['PyTorch']:.0f}, {against.get(row['model'], 'DDP')}",
                f"{row['ratio']:.2f}",
                f"{row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f}",
                f"{row['bytes']:,}",
            ]
            for row in rows
        ),
    )


def steps_say(steps: dict[str, Any]) -> str:
    """Say what rows are medians of."""
    return (
        f"Medians of {steps['rounds']} steps of either, of that of {steps['runs']} runs whose ratio is the median; "
        f"load average {steps['load']:.1f} at their end."
    )


def gap(row: dict[str, Any], alone: dict[str, Any]) -> float:
    """Return how far a model's losses are from those of one rank, relative to these."""
    return float(max(abs(a - b) / abs(b) for a, b in zip(row["losses"], alone["losses"], strict=True)))


def sweep_says(trained: Mapping[str, list[dict[str, Any]]], planned: list[dict[str, Any]]) -> str:
    """Say of how many models the losses are one rank's, what others differ by, and what planning takes."""
    alone = by_model(trained["1"])
    lines = []
    for ranks, rows in trained.items():
        gaps = {row["model"]: gap(row, alone[row["model"]]) for row in rows}
        others = [f"`{name}` {difference:.1g}" for name, difference in gaps.items() if not difference <= CLOSE]
        as_planned = sum(row["as planned"] for row in rows)
        within = f"{len(gaps) - len(others)} of {len(rows)} within {CLOSE:g}"
        named = f" (others: {', '.join(others)})" if others else ""
        largest = max((difference for difference in gaps.values() if difference <= CLOSE), default=0.0)
        if ranks != "1":
            lines.append(
                f"On {ranks} ranks the losses of {within} of one rank's, the largest difference of these {largest:.1g}"
                f"{named}; of {as_planned} of {len(rows)} every message is of the planned bytes."
            )
    largest_plan = max((row for row in planned if "memory" in row), key=lambda row: row["memory"])
    names = "; ".join(f"`{row['model']}`: {row['left out']}" for row in planned if "left out" in row)
    return "\n".join(
        [
            *lines,
            f"Making, importing and planning one takes up to {largest_plan['memory'] / 1e9:.1f} GB of memory "
            f"(`{largest_plan['model']}`).",
            f"Drawn and left out, as they are not made, imported or planned: {names or 'none'}.",
        ]
    )


def profiled_table(rows: Mapping[str, Any]) -> str:
    """Render seconds of a step by part, as predicted and as profiled; the largest first."""
    names = dict.fromkeys(name for row in rows.values() for of in row.values() for name in of)
    cells = []
    for name in sorted(names, key=lambda name: -sum(row["profiled"].get(name, 0.0) for row in rows.values())):
        pairs = [[row[side].get(name, 0.0) for side in ("predicted", "profiled")] for row in rows.values()]
        ratios = [f"{before / after:.2f}" if after else "" for before, after in pairs]
        figures = [[*(f"{1e3 * value:.2f}" for value in pair), r] for pair, r in zip(pairs, ratios, strict=True)]
        cells.append([name, *(cell for row in figures for cell in row)])
    columns = (f"{kind}, {what}" for kind in rows for what in ("predicted (ms)", "profiled (ms)", "ratio"))
    return table(["part", *columns], cells)


def profiled_say(data: Mapping[str, Any]) -> str:
    """Say where and how often it was profiled, and how many classes of kernels are within a fifth."""
    pairs = [
        (row["predicted"].get(name, 0.0), seconds)
        for row in data["rows"].values()
        for name, seconds in row["profiled"].items()
        if name not in (EXPOSED, IDLE, STEP)
    ]
    close = sum(abs(predicted / seconds - 1) <= FIFTH for predicted, seconds in pairs)
    return (
        f"Of {data['attempts']} traces the fastest; {data['machine']}, load average {data['load']:.1f} at their end. "
        f"{close} of {len(pairs)} classes of kernels are within {FIFTH:.0%}."
    )


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    steps = data["steps"]
    return {
        "machine": f"Measured on: {steps['machine']}; PyTorch {steps['torch']}.",
        "steps": steps_table(steps["rows"]),
        "steps-load": steps_say(steps),
        "sweep": sweep_says(data["sweep"]["trained"], data["sweep"]["planned"]),
        "profiled": profiled_table(data["profiled"]["rows"]),
        "profiled-load": profiled_say(data["profiled"]),
    }


if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        publish(HERE, read_data(HERE) | {"sweep" if part == "sample" else part: PARTS[part]()}, pages)
