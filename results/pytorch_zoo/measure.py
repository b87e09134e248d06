"""Print the bytes of both plans of every model as JSON: of the zoo's graph and of the traced one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch._subclasses import FakeTensorMode

import planner
from planner.graph import Graph, Optimizer
from results.pytorch_zoo.modules import Fused, Made, Unrolled, mlp, rnn, transformer, wresnet

WORKERS = 8
PLACEMENTS = ("S", "S,R")
FUSED, BY_HAND = "`nn.LSTM`", "cells by hand"
Case = tuple[str, int, str]
"""A model of the zoo, the batch, and how it is written in PyTorch where there are several ways."""

CASES: Mapping[Case, Callable[[int], Made]] = {
    ("mlp-4-1024", 256, ""): partial(mlp, 4, 1024),
    ("wresnet-50-1", 32, ""): partial(wresnet, 50, 1),
    ("transformer-4-768", 8, ""): partial(transformer, 4, 768),
    ("rnn-2-512", 32, FUSED): partial(rnn, Fused, 2, 512),
    ("rnn-2-512", 32, BY_HAND): partial(rnn, Unrolled, 2, 512),
    ("rnn-2-512", 256, FUSED): partial(rnn, Fused, 2, 512),
    ("rnn-2-512", 256, BY_HAND): partial(rnn, Unrolled, 2, 512),
}


def traced(make: Callable[[], Made]) -> Graph:
    """Return the graph of a module that is made without memory for its tensors, with the zoo's optimizer."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        module, inputs, loss, targets = make()
    optimizer = Optimizer("momentum", lr=0.01, momentum=0.9)
    return planner.from_torch(module, inputs, loss=loss, targets=targets, optimizer=optimizer)


def compared(case: Case, placements: str) -> dict[str, Any]:
    """Return both plans' bytes."""
    model, batch, written = case
    plans = [
        planner.plan(graph, WORKERS, placements=placements)
        for graph in (planner.model(model, batch=batch), traced(partial(CASES[case], batch)))
    ]
    return {
        "model": model,
        "batch": batch,
        "written": written,
        "placements": placements,
        "zoo_bytes": plans[0].total_bytes,
        "traced_bytes": plans[1].total_bytes,
    }


if __name__ == "__main__":
    print(json.dumps([compared(case, placements) for case in CASES for placements in PLACEMENTS]))
