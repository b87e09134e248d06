"""Ranks of gloo that train with a file written for FSDP2: python -m tests.export.sharded RANKS; prints JSON."""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import planner
from planner.export.setup import Setup
from planner.export.targets import TARGETS
from planner.parallel import Parallel
from tests.executor_torch.counted import LENGTH, VOCABULARY, count_reduced, count_sharded, module

MICRO_BATCHES, STEPS, RATE = 2, 3, 0.1
SAMPLES = 2
"""Of a micro-batch of one rank."""


def batch(ranks):
    """Tokens and those that follow, [micro-batches, ranks, samples, length]."""
    torch.manual_seed(1)
    return torch.randint(0, VOCABULARY, (2, MICRO_BATCHES, ranks, SAMPLES, LENGTH)).unbind()


def exported(ranks, zero):
    """The file that is written for a stage of ZeRO, and the bytes that it says it moves."""
    model, samples = module(), ranks * SAMPLES * MICRO_BATCHES
    inputs = torch.zeros((2, samples, LENGTH), dtype=torch.long).unbind()
    graph = planner.from_torch(model, inputs, optimizer=planner.Optimizer("sgd", lr=RATE))
    setup = Setup(graph, Parallel(dp=ranks, zero=zero, micro_batch=SAMPLES))
    target = TARGETS["fsdp2"]
    text = target.write(setup, "split")
    return text, int(text.partition("together receive ")[2].partition(" bytes")[0].replace(",", ""))


def trained_alone(ranks):
    """Losses of one process that takes the whole batch at once, and its parameters."""
    model, (tokens, target) = module(), batch(ranks)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens.flatten(0, 2), target.flatten(0, 2))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [weight.detach() for weight in model.parameters()]


def on_rank(rank, ranks, folder, files):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    expected, parameters = trained_alone(ranks)
    result = {"expected": expected}
    counted = []
    count_sharded(ranks - 1, counted)
    for zero, text in files.items():
        file = type(sys)("split")
        exec(text, file.__dict__)
        counted.clear()
        model = file.distribute(module())
        if zero == 0:
            count_reduced(model, ranks - 1, counted)
        losses = list(steps(file, model, rank, ranks))
        pairs = zip(model.parameters(), parameters, strict=True)
        worst = max((whole(mine) - theirs).abs().max().item() for mine, theirs in pairs)
        result[zero] = {"losses": losses, "moved": sum(counted) / STEPS, "worst": worst}
    if rank == 0:
        (Path(folder) / "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def steps(file, model, rank, ranks):
    """Train as the file says; yield the mean loss of all ranks."""
    tokens, target = batch(ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros(())
        for number in range(file.MICRO_BATCHES):
            with file.exchanging(model, number):
                loss = model(tokens[number, rank], target[number, rank]) / file.MICRO_BATCHES
                loss.backward()
            total += loss.detach()
        optimizer.step()
        dist.all_reduce(total)
        yield total.item() / ranks


def whole(parameter):
    tensor = parameter.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def main(ranks):
    files, said = {}, {}
    for zero in range(4):
        files[zero], said[zero] = exported(ranks, zero)
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(on_rank, (ranks, folder, files), ranks, start_method="fork")
        result = json.loads((Path(folder) / "result.json").read_text())
    print(json.dumps(result | {"said": said}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
