"""One search in a process of its own: MODEL BATCH WAYS PLACEMENTS SEARCH RULES.

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
    """Return nodes, bytes, the gap to a lower bound, seconds from graph to plan, and the process's largest memory."""
    graph = build(model, batch=batch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu_started = time.perf_counter(), time.process_time()
    plan = search(graph, options)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    record = plan.search
    return {
        "nodes": len(graph.nodes),
        "bytes": record.bytes[options.searcher],
        "lower_bound": record.lower_bound,
        "winner": record.winner,
        "plan_bytes": plan.total_bytes,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "memory_before_bytes": before * 1024,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    gc.set_threshold(COLLECTED_EVERY)  # as the command `plan` does
    model, batch, ways, placements, name, rules = sys.argv[1:]
    ties = None if rules == "default" else Ties.only(rules.split(","))
    options = SearchOptions(tuple(map(int, ways.split(","))), name, placements, ties)
    print(json.dumps(measure(model, int(batch), options)))
