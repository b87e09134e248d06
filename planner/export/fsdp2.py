"""PyTorch's FSDP2 or DistributedDataParallel: Python files that shard a module over data-parallel workers."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from planner.export.setup import Launch, Setup, first
from planner.graph.ir import ITEM_BYTES, entries_of

TEMPLATE = Path(__file__).parent / "fsdp2.txt"
HALVES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def limits(setup: Setup) -> str:
    """Return why FSDP2 by itself cannot run a setup; "" if it can."""
    parallel = setup.parallel
    return first(
        "pipeline stages need torch.distributed.pipelining" if parallel.pp > 1 else "",
        "context parallelism needs torch.distributed.tensor.experimental" if parallel.cp > 1 else "",
        "expert parallelism needs support in the module itself" if parallel.ep > 1 else "",
        "tensor parallelism needs DTensor: export-plan --to dtensor" if parallel.tp > 1 else "",
        "there is nothing to shard" if parallel.dp == 1 else "",
        "recomputation needs torch.utils.checkpoint in the module" if parallel.recompute != "none" else "",
    )


def notes(setup: Setup) -> tuple[str, ...]:
    """Return where FSDP2 differs from the plan."""
    if setup.half and setup.weights_are_half:
        return (f"create the module in {setup.half}, as the plan's weights are",)
    return ()


def moved_bytes(setup: Setup) -> int:
    """Return the bytes that all ranks together receive in an iteration, whatever the collectives' algorithm.

    Gathering n bytes on all k workers costs (k - 1) n, and so does reducing n bytes to shares. ZeRO 0 all-reduces
    gradients once, ZeRO 1 reduces them to shares once, ZeRO 2 for every micro-batch. Weights are gathered once; with
    ZeRO 3, twice for every micro-batch.
    """
    zero, count = setup.parallel.zero, setup.micro_batches
    gathers = {0: 0, 3: 2 * count}.get(zero, 1)
    reductions = {0: 2, 1: 1}.get(zero, count)
    elements = _elements(setup)
    kept = sum(number * ITEM_BYTES[dtype] for dtype, number in elements.items())
    sent = kept if setup.weights_are_half or not setup.half else elements.total() * ITEM_BYTES["bfloat16"]
    return (setup.parallel.dp - 1) * (gathers * sent + reductions * kept)


def _elements(setup: Setup) -> Counter[str]:
    """Return the number of sharded elements by dtype, padded by rows so that all workers have equal shares."""
    graph, ranks = setup.graph, setup.parallel.dp if setup.parallel.zero else 1
    trained = {name for name in graph.updates if graph.tensors[name].role == "weight"}
    shapes = {
        entry.tensor: (entry.shape, entry.dtype) for entry in entries_of(graph).values() if entry.tensor in trained
    }
    elements: Counter[str] = Counter()
    for shape, dtype in shapes.values():
        rows = shape[0] if shape else 1
        elements[dtype] += math.prod(shape) // max(1, rows) * -(-rows // ranks) * ranks
    return elements


def write(setup: Setup, name: str) -> str:
    """Return the content of the Python file, which will be imported under this name."""
    parallel = setup.parallel
    values = {
        "MODEL": setup.model,
        "MODULE": name,
        "WORKERS": str(parallel.dp),
        "BYTES": f"{moved_bytes(setup):,}",
        "ZERO": str(parallel.zero),
        "MICRO_BATCHES": str(setup.micro_batches),
        "HALF": "None" if setup.weights_are_half or not setup.half else HALVES[setup.half],
    }
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], TEMPLATE.read_text())


FSDP2 = Launch("FSDP2", limits, notes, write, "fsdp2")
