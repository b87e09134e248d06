"""Forked processes that train with an exported file under gloo: python -m tests.export.ranks WORKERS; prints JSON."""

import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from functools import partial
from itertools import product
from math import prod

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import planner
from planner.export.exported import export
from tests.export.modules import decoder, mlp
from tests.pytorch.models import CASES as MODELS

STEPS, RATE = 3, 0.1
CASES = {"mlp": mlp, "gpt": decoder, "uneven": partial(decoder, 1025), "resnet": MODELS["resnet50"]}
WAYS = {2: (2,), 4: (2, 2), 8: (2, 2, 2)}


class Counted(TorchDispatchMode):
    """Bytes that this rank receives in collectives; a ring's, for those that are rings."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = function.__name__.split(".")[0]
        if function.namespace == "_c10d_functional" and name in RECEIVED:
            self.bytes += RECEIVED[name](args[0].numel() * args[0].element_size(), args)
        return function(*args, **(kwargs or {}))


def _group(args):
    return dist.distributed_c10d._resolve_process_group(args[-1]).size()


RECEIVED = {
    "all_gather_into_tensor": lambda size, args: size * (args[1] - 1),
    "reduce_scatter_tensor": lambda size, args: size * (args[2] - 1) // args[2],
    "all_reduce": lambda size, args: 2 * size * (_group(args) - 1) // _group(args),
    "all_to_all_single": lambda size, args: size * (_group(args) - 1) // _group(args),
}


def case_of(name):
    """Return a case's module with known weights, inputs and targets; of "gpt@tp=2" what is before the @."""
    torch.manual_seed(1)
    module, (x,), loss, (target,) = CASES[name.partition("@")[0]]()
    x = torch.randint(0, 32, x.shape) if x.dtype == torch.long else torch.randn_like(x)
    return module.double(), x.double() if x.is_floating_point() else x, loss, target


def exported(name, ways, placements="S,R"):
    """Return a case's plan for an engine, by the parallelism behind an @ or of these ways, and the written module."""
    module, x, loss, target = case_of(name)
    graph = planner.from_torch(module, (x,), loss=loss, targets=(target,))
    _, named, parallel = name.partition("@")
    search = {"parallel": parallel} if named else {"ways": ways, "placements": placements}
    sharded = export(planner.plan(graph, **search), "dtensor")
    file = type(sys)("exported")
    exec(sharded.source(file.__name__), file.__dict__)
    return sharded, file


def losses(module, x, loss, target):
    """Train by SGD; return every step's loss."""
    optimizer, values = torch.optim.SGD(module.parameters(), lr=RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(module(x), target)
        value.backward()
        optimizer.step()
        values.append(value.full_tensor().item() if isinstance(value, DTensor) else value.item())
    return values


def on_rank(name, sharded, file):
    """Train on this rank; return losses, bytes received, and how far parameters are from those of one process."""
    module, x, loss, target = case_of(name)
    alone = case_of(name)
    expected = losses(*alone)
    mesh = file.distribute(module)
    names = [key for key in file.DATA if key != "target"]
    with Counted() as counted, file.running(mesh):
        got = losses(module, file.distributed(mesh, names[0], x), loss, file.distributed(mesh, "target", target))
    pairs = zip(module.parameters(), alone[0].parameters(), strict=True)
    worst = max((mine.full_tensor() - theirs).abs().max().item() for mine, theirs in pairs)
    return {
        "expected": expected,
        "losses": got,
        "worst": worst,
        "received": counted.bytes / STEPS,
        "plan_bytes": sharded.plan.total_bytes,
        "predicted": sharded.target_bytes,
        "split": sum("S" in text for text in file.PARAMETERS.values()),
    }


def layouts_put_together(ways):
    """Return how many layouts of a matrix over these ways there are, and those that are not put together rightly."""
    _, file = exported("mlp", (2,))
    file.WAYS = {f"step{number}": way for number, way in enumerate(ways)}
    file.OUTPUTS.clear()
    layouts = [",".join(placements) for placements in product(("S0", "S1", "R"), repeat=len(ways))]
    whole, wrong = torch.arange(24.0 * 48).view(24, 48), []
    for layout in layouts:
        module = nn.Module()
        module.weight = nn.Parameter(whole.clone())
        file.PARAMETERS.clear()
        file.PARAMETERS["weight"] = layout
        file.distribute(module)
        held = prod(way for way, placement in zip(ways, layout.split(","), strict=True) if placement != "R")
        if module.weight.to_local().numel() * held != whole.numel() or not torch.equal(
            module.weight.full_tensor(), whole
        ):
            wrong.append(layout)
    return {"layouts": len(layouts), "wrong": wrong}


def rank_main(rank, workers, store, work, queue):
    """Do the work of one rank; rank 0 says what was found, and bytes are added up."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=workers, timeout=timedelta(100)
    )
    result = {}
    for name, sharded, file in work["cases"]:
        result[name] = on_rank(name, sharded, file)
        total = torch.tensor(result[name].pop("received"), dtype=torch.float64)
        dist.all_reduce(total)
        result[name]["dtensor_bytes"] = int(total.item())
    for ways in work["ways"]:
        result[str(ways)] = layouts_put_together(ways)
    if rank == 0:
        queue.put(result)
    dist.barrier()
    dist.destroy_process_group()


def main(workers, *names):
    """Fork the ranks, after all is imported and planned, and print what rank 0 found."""
    warnings.simplefilter("ignore")
    work = {
        "cases": [(name, *exported(name, WAYS[workers])) for name in names],
        "ways": [ways for ways in ((2, 2), (2, 2, 2), (4, 2), (3, 2, 2)) if prod(ways) == workers],
    }
    fork, (handle, store) = multiprocessing.get_context("fork"), tempfile.mkstemp()
    os.close(handle)
    os.unlink(store)
    queue = fork.Queue()
    ranks = [fork.Process(target=rank_main, args=(rank, workers, store, work, queue)) for rank in range(workers)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(250)
    if any(rank.exitcode != 0 for rank in ranks):
        for rank in ranks:
            rank.kill()
        sys.exit("a rank failed")
    print(json.dumps(queue.get(timeout=10)))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
