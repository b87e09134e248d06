"""A training in which a rank is killed: torchrun --max-restarts 1 --nproc-per-node 2 -m results.torchrun.kills FOLDER

With `SEED` a rank, a step and a moment are drawn, at which SIGKILL ends that rank, once. Rank 0 prints, as JSON lines,
who is to be killed, from which step training goes on, every step's loss, and at the end a digest of all weights and of
the optimizer's state. `plan FOLDER`, by itself, writes the plan.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import planner
from executor.torch import Distributed, distribute
from planner.pytorch.user_model import UserModel, imported

STEPS, EVERY, ROWS = 40, 4, 32
LONGEST_DELAY_S, MARGIN = 0.02, 8
"""From a step's end: as long as some steps, or the writing of a checkpoint; and steps that are left for it."""


def perceptron() -> UserModel:
    """Return a perceptron with dropout, a batch and AdamW with clipping."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 16))
    optimizer = torch.optim.AdamW([{"params": [*module.parameters()], "clip_norm": 1.0}], lr=1e-2)
    images, labels = torch.randn(ROWS, 64), torch.randint(16, (ROWS,))
    return UserModel(module, (images,), nn.functional.cross_entropy, (labels,), optimizer)


def drawn() -> dict[str, Any]:
    """Return which rank is killed behind which step, and how long behind."""
    chance = random.Random(f"kills {os.environ['SEED']}")
    return {
        "rank": chance.randrange(2),
        "step": chance.randrange(STEPS - MARGIN),
        "delay_s": chance.uniform(0, LONGEST_DELAY_S),
    }


def kill(training: Distributed, step: int, delay_s: float) -> None:
    """End this process a while after a step."""
    while training.steps < step:
        time.sleep(0.0005)
    time.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)


def say(training: Distributed, **what: object) -> None:
    """Print what rank 0 says."""
    if training.rank == 0:
        print(json.dumps(what), flush=True)


def digest(training: Distributed) -> str:
    """Return what stands for the bits of all weights and of the optimizer's state, on rank 0 (collective)."""
    bits = sha256()
    weights, optimizer = training.state_dict(), training.optimizer
    states = optimizer.state_dict()["state"] if optimizer is not None else {}
    moments = {f"{number} {key}": state[key] for number, state in states.items() for key in state}
    for name, tensor in sorted((weights | moments).items()):
        bits.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return bits.hexdigest()


def main(folder: Path) -> None:
    """Train to the end, from the last complete checkpoint; a new batch in every step."""
    given = perceptron()
    training = distribute(given.module, folder / "plan.json", given.optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(given.optimizer, T_max=STEPS)
    say(training, begin=training.resume(folder / "run", schedule=schedule))
    if "SEED" in os.environ and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        chosen = drawn()
        say(training, kill=chosen)
        if chosen["rank"] == training.rank:
            threading.Thread(target=kill, args=(training, chosen["step"], chosen["delay_s"]), daemon=True).start()
    for step in range(training.steps, STEPS):
        torch.manual_seed(step)
        images = torch.randn(ROWS, 64)
        say(training, step=step + 1, loss=training.step(images, images[:, :16].argmax(1)).item())
        schedule.step()
        if training.steps % EVERY == 0:
            training.save(folder / "run", schedule=schedule)
    say(training, digest=digest(training))
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "plan":
        planner.plan(imported(perceptron()), workers=2).save(Path(sys.argv[2]) / "plan.json")
    else:
        main(Path(sys.argv[1]))
