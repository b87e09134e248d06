"""Traces of DDP and FSDP2: torchrun --nproc-per-node K -m results.torchrun.profiled FOLDER ATTEMPTS.

PyTorch's profiler records steps of a small GPT on every rank, of one thread, over gloo, in
FOLDER/KIND.ATTEMPT.RANK.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from executor.process import keep_memory

keep_memory()  # before anything allocates

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.profiler import ProfilerActivity, profile, schedule  # noqa: E402

from examples.pytorch_model import VOCABULARY, LanguageModel, loss, make  # noqa: E402

BATCH = 16
WARM_UP, STEPS = 3, 3


def wrapped(kind: str) -> nn.Module:
    """Return the GPT, its data parallelism by PyTorch's DDP or FSDP2."""
    model = LanguageModel()
    if kind == "DDP":
        return DistributedDataParallel(model)
    for block in model.blocks:
        fully_shard(block)
    sharded: nn.Module = fully_shard(model)
    return sharded


def main(folder: Path, attempts: int) -> None:
    """Train, and write the traces."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, rows = dist.get_rank(), BATCH // dist.get_world_size()
    for kind in ("DDP", "FSDP2"):
        model = wrapped(kind)
        optimizer = type(make()[-1])(model.parameters(), lr=3e-4)
        tokens = torch.randint(0, VOCABULARY, (rows, make()[1][0].shape[1]))

        def step() -> None:
            optimizer.zero_grad()  # noqa: B023 -- called within the loop
            loss(model(tokens), tokens).backward()  # noqa: B023
            optimizer.step()  # noqa: B023

        for _ in range(WARM_UP):
            step()
        for attempt in range(attempts):
            steps = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
            with profile(activities=[ProfilerActivity.CPU], schedule=steps) as recorded:
                for _ in range(1 + STEPS):
                    step()
                    recorded.step()
            recorded.export_chrome_trace(str(folder / f"{kind}.{attempt}.{rank}.json"))
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
