"""One model's searches by one searcher, in a process of its own: MODEL OPTIONS SEARCHER SECONDS CASES.

OPTIONS and CASES are JSON: the model's options, and [workers, placements] of every search. SECONDS of CPU, and no more,
go into each.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from planner.models import build
from planner.search import Limits, SearchOptions, Space, space_of
from planner.search.coarse import Coarsenings
from planner.search.run import prime_factors
from results.experiment import OverTimeError, cpu_limit
from results.searchers import ALL
from tensor_partitioner.commands.console import COLLECTED_EVERY

TIED_FOR = "recursive"
"""All searches of one placement set choose from the plans of the graph that is coarsened for this one."""

BOUNDED_PART = 0.5
"""The part of the seconds for which a search that cannot be exact goes on improving its bounds."""


def measure(space: Space, searcher: str, seconds: float) -> dict[str, object]:
    """Return bytes, a lower bound where the searcher knows one, and seconds of CPU; or what it took too much of."""
    limits = Limits(seconds=BOUNDED_PART * seconds)
    started = time.process_time()
    try:
        with cpu_limit(seconds):
            outcome = ALL[searcher].search(space, limits)
    except OverTimeError:
        return {"over": f"{seconds:g} s"}
    except MemoryError:
        return {"over": "memory"}
    taken = time.process_time() - started
    return {"bytes": outcome.cost, "lower_bound": outcome.lower_bound, "seconds": round(taken, 3)}


def main(model: str, options: str, searcher: str, seconds: str, cases: str) -> None:
    """Print the searches as JSON; the coarse graph is made before the clock starts."""
    gc.set_threshold(COLLECTED_EVERY)
    graph = build(model, **json.loads(options))
    known, rows = Coarsenings(graph), []
    for workers, placements in json.loads(cases):
        space = space_of(graph, SearchOptions(prime_factors(workers), TIED_FOR, placements), known)
        case = {"search": searcher, "workers": workers, "placements": placements}
        rows.append(case | measure(space, searcher, float(seconds)))
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
