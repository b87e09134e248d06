"""CPU seconds of steps in turns: torchrun --nproc-per-node K -m results.torchrun.steps ROUNDS PLAN...

`plan RANKS FOLDER NAME...`, by itself, writes the plans.

Ours and PyTorch's own data parallelism, FSDP2 of the GPT and DDP of the others, train the same module from the same
weights, in the same processes: one thread a rank, memory that is freed is kept, gloo. What counts is the CPU time of
all threads of all ranks. Rank 0 prints, as JSON, the median of either side and that of the ratios of neighbours.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from executor.process import keep_memory

keep_memory()  # before anything allocates

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import planner  # noqa: E402
from examples.unet import UNet  # noqa: E402
from executor.torch import distribute  # noqa: E402
from planner.plans.plan_json import load_plan  # noqa: E402
from planner.pytorch.user_model import UserModel, imported  # noqa: E402
from results.torchrun.models import GPT, Step, of_all, trained  # noqa: E402

WARM_UP = 3
CLOSE, CLOSE_BY_RANK = 1e-3, 1e-2
"""How near first losses are; and where DDP's batch norm is of a rank's rows, as ours is of the whole batch."""

NORMALIZED = ("resnet18", "unet")
"""The models with batch norm."""


class Block(nn.Module):
    """Two convolutions, added to what goes in."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.short: nn.Module = nn.Identity()
        if stride != 1:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


def resnet18() -> nn.Module:
    """Return ResNet-18 (He and others, 2015)."""
    widths = (64, 64, 128, 256, 512)
    blocks = [
        Block(widths[stage - 1] if not number else widths[stage], widths[stage], 2 if stage > 1 and not number else 1)
        for stage in range(1, 5)
        for number in range(2)
    ]
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def user_model(name: str) -> UserModel:
    """Return a model with its batch, its loss and its optimizer."""
    torch.manual_seed(0)
    if name == "gpt":
        module: nn.Module = GPT(256)
        tokens = torch.randint(2048, (2, 8, 128))
        return UserModel(module, (tokens[0],), F.cross_entropy, (tokens[1],), torch.optim.AdamW(module.parameters()))
    module, extent, classes = (resnet18(), 64, 1000) if name == "resnet18" else (UNet(16, 3, 21), 64, 21)
    labels = torch.randint(classes, (16,) if name == "resnet18" else (16, extent, extent))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    return UserModel(module, (torch.randn(16, 3, extent, extent),), F.cross_entropy, (labels,), optimizer)


def plan(name: str, ranks: int, folder: Path) -> None:
    """Write a model's plan."""
    planner.plan(imported(user_model(name)), workers=ranks).save(folder / f"{name}.json")


def theirs(given: UserModel, is_fsdp: bool) -> Step:
    """Return a step of PyTorch's data parallelism, each rank with its rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    module = copy.deepcopy(given.module)
    if is_fsdp:
        for block in module.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        parallel: nn.Module = fully_shard(module)  # type: ignore[assignment]
    else:
        parallel = DistributedDataParallel(module)
    settings = {key: value for key, value in given.optimizer.param_groups[0].items() if key in ("lr", "momentum")}
    optimizer = type(given.optimizer)(parallel.parameters(), **settings)
    inputs, targets = (tensor.chunk(size)[rank] for tensor in (*given.inputs, *given.targets))
    return trained(parallel, optimizer, inputs, targets)


def measured(path: Path, rounds: int) -> dict[str, Any]:
    """Measure a model's steps; ValueError where the first losses are not the same."""
    given, planned = user_model(path.stem), load_plan(path)
    other = theirs(given, path.stem == "gpt")
    ours = distribute(given.module, planned, given.optimizer)
    steps = {"ours": lambda: ours.step(given.inputs, given.targets), "PyTorch": other}
    seconds: dict[str, list[float]] = {side: [] for side in steps}
    first: dict[str, float] = {}
    for _ in range(WARM_UP + rounds):
        for side, step in steps.items():
            dist.barrier()
            started = time.process_time()
            loss = step()
            dist.barrier()
            seconds[side].append(of_all(time.process_time() - started))
            first.setdefault(side, of_all(float(loss)) / dist.get_world_size())
    apart = path.stem in NORMALIZED and dist.get_world_size() > 1
    if abs(first["ours"] - first["PyTorch"]) > (CLOSE_BY_RANK if apart else CLOSE):
        raise ValueError(f"{path.stem}: expected the same first loss, found {first}")
    kept = {side: values[WARM_UP:] for side, values in seconds.items()}
    ratios = [mine / other for mine, other in zip(*kept.values(), strict=True)]
    return {
        "model": path.stem,
        "ranks": dist.get_world_size(),
        **{side: round(median(values), 4) for side, values in kept.items()},
        "ratio": round(median(ratios), 3),
        "bytes": planned.total_bytes,
    }


def main(rounds: int, paths: list[str]) -> None:
    """Measure the models of these plans."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for path in paths:
        row = measured(Path(path), rounds)
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "plan":
        ranks, folder, *names = sys.argv[2:]
        for name in names:
            plan(name, int(ranks), Path(folder))
    else:
        main(int(sys.argv[1]), sys.argv[2:])
