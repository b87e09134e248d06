"""Plans on ranks of torchrun: whether they send what was planned and train as eager does, and what a step takes.

    python -m results torchrun

writes data.json and the tables in README.md, both beside this file.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import planner
from results.experiment import ROOT, Pages, filled, machine, publish, table
from results.torchrun.cases import CASES, STEPS, WAYS, plans, torchrun
from results.torchrun.models import MODELS, RATE

HERE = Path(__file__).parent
ROUNDS = 15
RANKS = 2


def on_ranks(ranks: int, module: str, *arguments: object) -> Any:
    """Run a module on ranks of this host; return the JSON that its rank 0 prints."""
    command = torchrun(ranks, module, *arguments)
    done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def planned(name: str, folder: Path) -> Path:
    """Write the plan that is found for a model."""
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = planner.Optimizer("sgd", lr=RATE)
    graph = planner.from_torch(
        model.module, (model.inputs,), loss=F.cross_entropy, targets=(model.targets,), optimizer=optimizer
    )
    path = folder / f"{name}.json"
    planner.plan(graph, workers=RANKS).save(path)
    return path


def data(rounds: int = ROUNDS) -> dict[str, Any]:
    """Train and time everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = [f"{model}={planned(model, folder)}" for model in MODELS]
        speed = on_ranks(RANKS, "results.torchrun.speed", rounds, *pairs)
        trained = {
            str(workers): on_ranks(
                workers,
                "results.torchrun.equality",
                *(path for case in CASES for path in plans(case, workers, folder)),
            )
            for workers in WAYS
        }
    return {"machine": machine(), "torch": torch.__version__, "speed": speed, "trained": trained}


def speed_table(speed: dict[str, Any]) -> str:
    """Render seconds per step."""
    rows = []
    for name, one in speed.items():
        seconds = one["seconds"]
        ratios = [f"{seconds['ours'] / seconds[other]:.2f}" for other in ("DTensor", "DDP")]
        moved = f"{one['sent']:,}" + ("" if one["sent"] == one["planned"] else f", planned {one['planned']:,}")
        rows.append([f"`{name}`", *(f"{1e3 * value:.0f}" for value in seconds.values()), *ratios, moved])
    return table(["model", "ours (ms)", "DTensor (ms)", "DDP (ms)", "of DTensor's", "of DDP's", "our bytes"], rows)


def trained_table(trained: dict[str, Any]) -> str:
    """Render what came of every module: of its plan that was searched, and of the one that was not."""
    rows = []
    for ranks, found in trained.items():
        for searched, drawn in zip(found[::2], found[1::2], strict=True):
            pair = (searched, drawn)
            sent = ["as planned" if all(step == one["planned"] for step in one["sent"]) else "other" for one in pair]
            moved = [f"{sum(map(sum, one['planned'])):,} {said}" for one, said in zip(pair, sent, strict=True)]
            worst = max(max(one["losses"], one["state"]) for one in pair)
            whole = [sum(one["sharded"]["equal"] for one in pair), sum(map(different, pair)), sum(map(refused, pair))]
            rows.append([f"`{searched['plan'].rpartition('-')[0]}`", ranks, *moved, f"{worst:.0e}", *map(str, whole)])
    columns = ["module", "ranks", "bytes, searched", "bytes, drawn", "apart", "whole", "wrong", "refused"]
    return table(columns, rows)


def different(one: dict[str, Any]) -> int:
    """Count the entries that DTensor puts together wrongly."""
    return len(one["sharded"]["different"])


def refused(one: dict[str, Any]) -> int:
    """Count the entries that DTensor does not take."""
    return len(one["sharded"]["refused"])


def verdict(trained: dict[str, Any]) -> str:
    """Say how many plans moved what was planned, and how far the worst is from eager."""
    every = [one for found in trained.values() for one in found]
    equal = sum(all(step == one["planned"] for step in one["sent"]) for one in every)
    worst = max(max(one["losses"], one["state"]) for one in every)
    stale = sorted({one["plan"].rpartition("-")[0] for one in every if one["stale"]})
    aside = f" Buffers that the graph does not update are aside: of {', '.join(stale)}." if stale else ""
    return (
        f"Of {len(every)} plans, each run {STEPS} steps, {equal} sent the bytes planned between every pair of ranks in "
        f"every step; no loss and no entry of a state dict is further from eager's than {worst:.0e}.{aside}"
    )


def pages(found: Any) -> Pages:
    """Return the README with its tables."""
    readme = filled(
        HERE / "README.md",
        machine=f"Measured on: {found['machine']}; PyTorch {found['torch']}.",
        speed=speed_table(found["speed"]),
        verdict=verdict(found["trained"]),
        trained=trained_table(found["trained"]),
    )
    return {"README.md": readme}


def main() -> None:
    """Measure, and write the data and the README's tables."""
    publish(HERE, data(), pages)


if __name__ == "__main__":
    main()
