"""PyTorch's FSDP2, or DistributedDataParallel: Python files that share a module out over data parallel workers."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from planner.export.setup import Launch, Setup, first
from planner.graph.entries import entries_of
from planner.graph.ir import ITEM_BYTES

TEMPLATE = Path(__file__).parent / "fsdp2.txt"
HALVES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
HALF_BYTES = 2


def limits(setup: Setup) -> str:
    """Say why FSDP2 by itself cannot run a setup."""
    parallel = setup.parallel
    return first(
        "stages of a pipeline are torch.distributed.pipelining's" if parallel.pp > 1 else "",
        "context parallelism is torch.distributed.tensor.experimental's" if parallel.cp > 1 else "",
        "experts are spread over workers by the module itself" if parallel.ep > 1 else "",
        "tensors are split by DTensor: export-plan --to dtensor" if parallel.tp > 1 else "",
        "there is nothing to share out" if parallel.dp == 1 else "",
        "what is computed again the module says: torch.utils.checkpoint" if parallel.recompute != "none" else "",
    )


def notes(setup: Setup) -> tuple[str, ...]:
    """Say what FSDP2 does otherwise."""
    if setup.half and setup.weights_are_half:
        return (f"the module must be made in {setup.half}, as the plan's weights are",)
    return ()


def moved_bytes(setup: Setup) -> int:
    """Return the bytes that all ranks together receive in an iteration, whatever the collectives' algorithm.

    What everybody is to have of n bytes costs (k - 1) n, a share for everybody of a sum as much. ZeRO 0 reduces
    gradients to everybody once, 1 to shares once, 2 for every micro-batch; weights are gathered once, by 3 twice for
    every micro-batch.
    """
    zero, count = setup.parallel.zero, setup.micro_batches
    gathers = {0: 0, 3: 2 * count}.get(zero, 1)
    reductions = {0: 2, 1: 1}.get(zero, count)
    elements = _elements(setup)
    kept = sum(number * ITEM_BYTES[dtype] for dtype, number in elements.items())
    sent = kept if setup.weights_are_half or not setup.half else elements.total() * HALF_BYTES
    return (setup.parallel.dp - 1) * (gathers * sent + reductions * kept)


def _elements(setup: Setup) -> Counter[str]:
    """Return how many elements are shared out, by dtype, with the rows that make every worker's share alike."""
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
    """Return the Python file, which is to be imported by this name."""
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
