"""Import, plan and simulate one module of a file; print what that took and found as JSON.

python -m results.pytorch_models.measure examples/gpt.py:make
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

import planner
import planner.pytorch  # PyTorch is loaded before the clock starts
import simulator
from planner.graph.facts import batch_size
from planner.plans.plan import Plan

WORKERS = 8
MACHINES = ("p2.8xlarge", "hgx-h100")


def seconds_per_step(plan: Plan) -> dict[str, float | None]:
    """Return the predicted seconds of a step, by machine."""
    return {machine: simulator.simulate(plan, machine).seconds_per_step for machine in MACHINES}


def measured(source: str) -> dict[str, Any]:
    """Return a module's row; why it was refused, where it was."""
    started = time.process_time()
    try:
        graph = planner.model(source)
    except planner.GraphError as error:
        return {"model": source, "refused": re.sub(r"\S*/site-packages/", "", str(error))}
    imported = time.process_time()
    plan = planner.plan(graph, WORKERS)
    planned = time.process_time()
    data_parallel = planner.plan(graph, WORKERS, searcher="data-parallel")
    return {
        "model": source,
        "batch": batch_size(graph),
        "parameters": sum(t.elements for t in graph.tensors.values() if t.role == "weight" and t.init is not None),
        "nodes": len(graph.nodes),
        "import_s": round(imported - started, 2),
        "plan_s": round(planned - imported, 2),
        "bytes": plan.total_bytes,
        "data_parallel_bytes": data_parallel.total_bytes,
        "step_s": seconds_per_step(plan),
        "data_parallel_step_s": seconds_per_step(data_parallel),
    }


if __name__ == "__main__":
    for source in sys.argv[1:]:
        print(json.dumps(measured(source)), flush=True)
