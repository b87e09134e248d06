"""Import and plan one large module of a file; print what that took as JSON.

python -m results.pytorch_models.large examples/gpt.py:make_13b 8
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import planner
import planner.pytorch  # PyTorch is loaded before the clock starts
from tensor_partitioner.commands.console import collect_seldom


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def taken(source: str, workers: int) -> dict[str, Any]:
    """Return the CPU seconds and the memory, over that of PyTorch loaded, from a file to a plan."""
    before, started = peak_bytes(), time.process_time()
    graph = planner.model(source)
    imported = time.process_time()
    plan = planner.plan(graph, workers)
    planned = time.process_time()
    return {
        "model": source,
        "workers": workers,
        "parameters": sum(t.elements for t in graph.tensors.values() if t.role == "weight" and t.init is not None),
        "nodes": len(graph.nodes),
        "import_s": round(imported - started, 2),
        "plan_s": round(planned - imported, 2),
        "memory_bytes": peak_bytes() - before,
        "bytes": plan.total_bytes,
    }


if __name__ == "__main__":
    collect_seldom()  # as the command does
    print(json.dumps(taken(sys.argv[1], int(sys.argv[2]))))
