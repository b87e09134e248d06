"""Plans of a part: python -m results.torchrun.planned FOLDER PART; prints where they are, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

import planner
from results.torchrun.cases import CASES, plans
from results.torchrun.models import MODELS
from results.torchrun.ranks import RATE, TIMED


def timed(name: str, folder: Path) -> Path:
    """Write the plan that is found for a model whose steps are timed."""
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = planner.Optimizer("sgd", lr=RATE)
    graph = planner.from_torch(
        model.module, (model.inputs,), loss=F.cross_entropy, targets=(model.targets,), optimizer=optimizer
    )
    path = folder / f"{name}.json"
    planner.plan(graph, workers=TIMED).save(path)
    return path


def main(folder: Path, part: str) -> None:
    """Write the plans of a part."""
    if part == "speed":
        found = [timed(name, folder) for name in MODELS]
    else:
        found = [path for name in CASES for path in plans(name, int(part), folder)]
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
