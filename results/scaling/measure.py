"""One recursive search in a process of its own: MODEL BATCH WAYS PLACEMENTS RULES.

RULES are the rules of coarsening that apply, or `default`.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time

from planner.models import build
from planner.search import SearchOptions, Ties, search
from tensor_partitioner.commands.console import COLLECTED_EVERY


def measure(model: str, batch: int, options: SearchOptions) -> dict[str, object]:
    """Return nodes, bytes, seconds of CPU from graph to plan, and the process's largest memory."""
    graph = build(model, batch=batch)
    started = time.process_time()
    plan = search(graph, options)
    seconds = time.process_time() - started
    return {
        "model": model,
        "batch": batch,
        "ways": options.ways,
        "placements": options.placements,
        "nodes": len(graph.nodes),
        "bytes": plan.search.bytes["recursive"],
        "seconds": round(seconds, 3),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    gc.set_threshold(COLLECTED_EVERY)  # as the command `plan` does
    model, batch, ways, placements, rules = sys.argv[1:]
    ties = None if rules == "default" else Ties.only(rules.split(","))
    options = SearchOptions(tuple(map(int, ways.split(","))), "recursive", placements, ties)
    print(json.dumps(measure(model, int(batch), options)))
