"""One search in a process of its own: MODEL BATCH PLACEMENTS SEARCH RULES, RULES those that apply."""

from __future__ import annotations

import gc
import json
import sys
import time

from planner.models import build
from planner.search import SearchOptions, Ties, search, space_of
from tensor_partitioner.commands.console import COLLECTED_EVERY

WAYS = (2, 2, 2)


def measure(model: str, batch: int, placements: str, name: str, rules: set[str]) -> dict[str, object]:
    """Return the size of the coarse graph, the bytes of the searcher's plan, and seconds of CPU from graph to plan."""
    graph = build(model, batch=batch)
    options = SearchOptions(WAYS, name, placements, Ties.only(rules))
    started = time.process_time()
    plan = search(graph, options)
    seconds = time.process_time() - started
    coarse = space_of(graph, options).coarse
    return {
        "model": model,
        "batch": batch,
        "nodes": len(graph.nodes),
        "placements": placements,
        "search": name,
        "rules": sorted(rules),
        "variables": len(coarse.variables),
        "factors": len(coarse.factors),
        "bytes": plan.search.bytes[name],
        "gap": plan.search.gap,
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    gc.set_threshold(COLLECTED_EVERY)  # as the command `plan` does
    model, batch, placements, name, rules = sys.argv[1:]
    print(json.dumps(measure(model, int(batch), placements, name, set(filter(None, rules.split(","))))))
