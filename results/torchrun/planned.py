"""Plans of the models whose steps are timed: python -m results.torchrun.planned FOLDER RANKS; prints paths as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

import planner
from results.torchrun.models import MODELS, RATE


def planned(name: str, folder: Path, ranks: int) -> Path:
    """Write the default plan of a model."""
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = planner.Optimizer("sgd", lr=RATE)
    graph = planner.from_torch(
        model.module, (model.inputs,), loss=F.cross_entropy, targets=(model.targets,), optimizer=optimizer
    )
    path = folder / f"{name}.json"
    planner.plan(graph, workers=ranks).save(path)
    return path


if __name__ == "__main__":
    print(json.dumps([str(planned(name, Path(sys.argv[1]), int(sys.argv[2]))) for name in MODELS]))
