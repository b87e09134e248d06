"""Train exports of published classes on two ranks of gloo, with the losses of one process.

    python -m results.exports.run

writes data.json and the table in README.md. Needs transformers, timm, torchvision and diffusers.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

import planner
from planner.errors import PlanError
from planner.export.engines import FSDP2
from planner.export.exported import export
from planner.export.setup import Setup
from planner.parallel import Parallel
from results.experiment import Pages, publish, table
from results.real_models.run import built

HERE = Path(__file__).parent
MODELS: dict[str, dict[str, Any]] = msgspec.yaml.decode((HERE / "models.yaml").read_bytes())
RANKS, STEPS, RATE, CLOSE = 2, 3, 0.05, 1e-6
"""Ranks, steps and their rate, and the largest relative difference of losses."""

Row = dict[str, Any]
Call = tuple[Any, dict[str, Any], tuple[Any, ...]]
"""A module, its inputs by name, and its loss with the target, if it returns none itself."""


def called(name: str) -> Call:
    """Return a module with known weights, without dropout, in float64, and random inputs."""
    torch = import_module("torch")
    torch.manual_seed(0)
    module, inputs, *loss = built(MODELS[name])
    for dropout in (part for part in module.modules() if isinstance(part, torch.nn.Dropout)):
        dropout.p = 0.0
    given = {key: _random(value) for key, value in inputs.items()}
    return module.double(), given, tuple(map(_random, loss))


def _random(value: Any) -> Any:
    torch = import_module("torch")
    if not isinstance(value, torch.Tensor):
        return value
    return torch.randn_like(value, dtype=torch.float64) if value.is_floating_point() else value.random_(2, 16)


def losses(call: Call, parts: int = 1) -> Iterator[float]:
    """Yield the losses of steps of SGD over a batch in equal parts, whose losses are averaged."""
    torch, (module, inputs, loss) = import_module("torch"), call
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for part in range(parts):
            result = module(**{name: share(value, part, parts) for name, value in inputs.items()})
            value = (loss[0](result, share(loss[1], part, parts)) if loss else result.loss) / parts
            value.backward()
            total += float(getattr(value, "full_tensor", lambda value=value: value)())
        optimizer.step()
        yield total


def share(value: Any, part: int, parts: int) -> Any:
    """Return a part of a batch."""
    return value.chunk(parts)[part] if hasattr(value, "chunk") else value


def text_of(target: str, call: Call) -> str:
    """Return the file of an export: FSDP2's of ZeRO-3, or DTensor's of tensor parallelism."""
    module, inputs, loss = call
    told: dict[str, Any] = {"loss": loss[0], "targets": loss[1:]} if loss else {}
    graph = planner.from_torch(module, inputs, optimizer=planner.Optimizer("sgd", lr=RATE), **told)
    if target == "dtensor":
        return export(planner.plan(graph, parallel=f"tp={RANKS}"), target).source("split")
    setup = Setup(graph, Parallel(dp=RANKS, zero=3, micro_batch=len(next(iter(inputs.values()))) // RANKS))
    if reason := FSDP2.cannot(setup):
        raise PlanError(reason)
    return FSDP2.write(setup, "split")


def trained(rank: int, folder: str, target: str, name: str, text: str) -> None:
    """Train on this rank as an export's file says; rank 0 writes what came of it."""
    torch, dist = import_module("torch"), import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    exec(text, (file := type(sys)("split")).__dict__)
    try:
        row = SIDES[target](file, called(name), rank)
    except Exception as error:  # of PyTorch, whatever it is: the table says it
        row = {"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    if rank == 0:
        (Path(folder) / "row.json").write_bytes(msgspec.json.encode(row))
    os._exit(0)  # a rank that has failed would leave the other waiting


def by_fsdp2(file: Any, call: Call, rank: int) -> Row:
    """Train a rank's samples by FSDP2, whose exchanges are counted."""
    dist, moved = import_module("torch.distributed"), list[int]()
    for operation, argument in (("all_gather_single", 0), ("reduce_scatter_single", "input")):
        setattr(dist, operation, partial(_counted, getattr(dist, operation), argument, moved))
    module, inputs, loss = call
    groups = len(list(file.blocks(module)))
    given = {name: share(value, rank, RANKS) for name, value in inputs.items()}
    mine = losses((file.distribute(module), given, tuple(share(value, rank, RANKS) for value in loss)))
    total = import_module("torch").tensor(list(mine))
    dist.all_reduce(total)
    return {"losses": (total / RANKS).tolist(), "groups": groups, "moved": sum(moved) // STEPS}


def _counted(exchange: Callable[..., Any], argument: int | str, moved: list[int], *given: Any, **named: Any) -> Any:
    moved.append((RANKS - 1) * (named | dict(enumerate(given)))[argument].nbytes)
    return exchange(*given, **named)


def by_dtensor(file: Any, call: Call, _rank: int) -> Row:
    """Train by DTensor with weights split over ranks, all of which take the whole batch."""
    module, inputs, loss = call
    mesh = file.distribute(module)
    with file.running(mesh):
        placed = {name: file.distributed(mesh, name, value) for name, value in inputs.items() if name in file.DATA}
        return {"losses": list(losses((module, inputs | placed, loss)))}


SIDES = {"fsdp2": by_fsdp2, "dtensor": by_dtensor}


def row_of(name: str) -> Row:
    """Return how a class trains by each export, or why not."""
    row, start = Row(name=name), import_module("torch.multiprocessing").start_processes
    for target in SIDES:
        try:
            text = text_of(target, called(name))
        except PlanError as error:
            row[target] = {"failed": f"refused: {error}"}
            continue
        with tempfile.TemporaryDirectory() as folder:
            start(trained, (folder, target, name, text), RANKS, start_method="fork")
            row[target] = msgspec.json.decode((Path(folder) / "row.json").read_bytes())
        expected = list(losses(called(name), RANKS if target == "fsdp2" else 1))
        pairs = zip(row[target].pop("losses", ()), expected, strict=False)
        row[target]["apart"] = max((abs(mine - theirs) / theirs for mine, theirs in pairs), default=None)
        if said := re.search(r"together receive ([\d,]+) bytes", text):
            row[target]["said"] = int(said[1].replace(",", ""))
    return row


def passes(row: Row) -> bool:
    """True for a class that both exports train like one process, in a group per block, with the bytes that are said."""
    fsdp2, same = row["fsdp2"], all("failed" not in row[side] and row[side]["apart"] < CLOSE for side in SIDES)
    return same and fsdp2["moved"] == fsdp2["said"] and fsdp2["groups"] == MODELS[row["name"]]["blocks"]


def pages(rows: list[Row]) -> Pages:
    """Return the sentence and the table of README.md."""
    columns = ("class", "passes", "FSDP2: losses apart", "groups", "blocks", "bytes", "said", "DTensor: losses apart")
    return {
        "says": f"{sum(map(passes, rows))} of {len(rows)} classes pass.",
        "models": table(columns, map(_cells, rows)),
    }


def _cells(row: Row) -> tuple[object, ...]:
    fsdp2, dtensor = ({"apart": ""} | row[target] for target in SIDES)
    counts = [fsdp2.get("groups", ""), MODELS[row["name"]]["blocks"], fsdp2.get("moved", ""), fsdp2.get("said", "")]
    apart = [side.get("failed") or f"{side['apart']:.0e}" for side in (fsdp2, dtensor)]
    return (f"`{row['name']}`", "yes" if passes(row) else "no", apart[0], *counts, apart[1])


if __name__ == "__main__":
    publish(HERE, [row_of(name) for name in MODELS], pages)
