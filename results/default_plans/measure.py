"""The default plan of one model and the alternatives', in a process of its own: MODEL BATCH WORKERS SECONDS.

SECONDS of CPU, and no more, go into each alternative, over all factorisations of the workers that the default tries.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import planner
from planner.search import Limits, SearchOptions, search
from results.experiment import OverTimeError, cpu_limit
from results.searchers import ALL
from tensor_partitioner.commands.console import COLLECTED_EVERY

PLACEMENTS = ("S", "S,R")
DEFAULT = ("recursive", "S,R")
BOUNDED_PART = 0.25
"""The part of the seconds for which a search that cannot be exact goes on improving its bounds."""


def alternatives() -> list[tuple[str, str]]:
    """Return searchers and placements: all but `joint`, which is no alternative, and the default itself."""
    return [
        (name, placements)
        for placements in PLACEMENTS
        for name in ALL
        if name != "joint" and (name, placements) != DEFAULT and placements in ALL[name].placements
    ]


def measure(
    graph: planner.Graph, factorisations: list[tuple[int, ...]], name: str, placements: str, seconds: float
) -> dict[str, Any]:
    """Return the fewest bytes that an alternative moves and the ways that it does so with, None where it found none.

    `left` are the factorisations that its time or the memory did not suffice for.
    """
    limits, started = Limits(seconds=BOUNDED_PART * seconds), time.process_time()
    costs: dict[tuple[int, ...], int] = {}
    try:
        with cpu_limit(seconds):
            for ways in reversed(factorisations):  # the quickest first: fewer steps, fewer states
                costs[ways] = search(graph, SearchOptions(ways, name, placements, limits=limits)).total_bytes
    except (OverTimeError, MemoryError):
        pass  # what was found until then counts, and what is left is told
    best = min(costs, key=costs.__getitem__, default=None)
    return {
        "search": name,
        "placements": placements,
        "bytes": None if best is None else costs[best],
        "ways": best,
        "left": [ways for ways in factorisations if ways not in costs],
        "seconds": round(time.process_time() - started, 2),
    }


def main(model: str, batch: str, workers: str, seconds: str) -> None:
    """Print the default plan's bytes and the alternatives' as JSON."""
    gc.set_threshold(COLLECTED_EVERY)  # as the command `plan` does
    graph = planner.model(model, batch=int(batch))
    started = time.process_time()
    plan = planner.plan(graph, workers=int(workers))
    taken = round(time.process_time() - started, 2)
    default = {"bytes": plan.total_bytes, "winner": plan.search.winner, "ways": plan.ways, "seconds": taken}
    tried = [factorisation.ways for factorisation in plan.search.factorisations]
    others = [measure(graph, tried, *asked, float(seconds)) for asked in alternatives()]
    print(json.dumps({"default": default, "alternatives": others}))


if __name__ == "__main__":
    main(*sys.argv[1:])
