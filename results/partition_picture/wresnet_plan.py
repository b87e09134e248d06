"""The plan that the recursion finds for WResNet-152-10, block by block, and what moves in each stage."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import groupby
from typing import Any

from planner.graph.ir import ITEM_BYTES, Node
from planner.models import build
from planner.plans.plan import Plan
from planner.plans.traffic import Traffic
from planner.search import SearchOptions, search

MODEL, BATCH, WAYS = "wresnet-152-10", 8, (2, 2, 2)
STAGES = ("stem", "stage1", "stage2", "stage3", "stage4", "classifier")


def plan() -> Plan:
    """Return the recursion's plan for 8 workers, nothing replicated."""
    return search(build(MODEL, batch=BATCH), SearchOptions(WAYS, "recursive", "S"))


def convolutions(planned: Plan) -> dict[str, dict[str, Any]]:
    """Return, by name, what every convolution reads, makes and is computed along: one entry per step, and megabytes."""
    return {node.name: _convolution(planned, node) for node in planned.graph.nodes if node.op == "convolution"}


def _convolution(planned: Plan, node: Node) -> dict[str, Any]:
    graph = planned.graph
    backward = {
        candidate.op.removeprefix("convolution_"): candidate
        for candidate in graph.nodes
        if candidate.forward == node.name
    }
    (data, weight), (result,) = node.inputs, node.outputs
    tensors = {"x": data, "w": weight, "y": result}
    nodes = {"forward": node.name} | {kind: gradient.name for kind, gradient in backward.items()}
    return {
        **{kind: list(map(str, planned.layouts[name])) for kind, name in tensors.items()},
        **{f"{kind}_megabytes": graph.tensors[name].nbytes / 1e6 for kind, name in tensors.items()},
        **{kind: list(planned.strategies[name]) for kind, name in nodes.items()},
    }


def blocks(every: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the stem and all blocks in order, consecutive blocks with equal decisions as one."""
    names = [name.rpartition(".") for name in every]
    order = list(dict.fromkeys(block for block, _, _ in names))
    parts = [(block, {part: every[f"{block}.{part}"] for of, _, part in names if of == block}) for block in order]
    runs = []
    for decisions, same in groupby(parts, key=lambda pair: pair[1]):
        alike = [block for block, _ in same]
        runs.append({"first": alike[0], "last": alike[-1], "blocks": len(alike), "convolutions": decisions})
    return runs


def moved(planned: Plan) -> dict[str, dict[str, float]]:
    """Return the gigabytes that move in each stage: weights and their gradients, activations and theirs, the rest."""
    graph = planned.graph
    total: dict[str, dict[str, float]] = defaultdict(lambda: {"weights": 0.0, "activations": 0.0})
    for tensor, exchange, times in Traffic(planned).exchanges():
        stage = re.match(r"stem|stage\d", tensor)
        kind = "weights" if re.search(r"\.w(\.|$)|\.b(\.|$)", tensor) else "activations"
        size = times * int(exchange.moved().sum()) * ITEM_BYTES[graph.tensors[tensor].dtype]
        total[stage[0] if stage else "classifier"][kind] += size / 1e9
    return {stage: total[stage] for stage in STAGES}
