"""Memory divides among workers: without the buffers of transfers in flight, k workers need a k-th each."""

import numpy as np
import pytest

from planner.models import build
from planner.plans.plan import single_worker
from planner.program.lower import lower
from planner.search import SearchOptions, search

IN_FLIGHT = ("fetch", "reduce")


def peak_in_flight(worker):
    """The most bytes that fetched operands and shares being reduced take at one task position."""
    alive = np.zeros(len(worker.tasks), dtype=np.int64)
    for buffer in worker.buffers:
        if buffer.kind in IN_FLIGHT and buffer.last >= 0:
            alive[buffer.first : buffer.last + 1] += buffer.nbytes
    return int(alive.max())


@pytest.mark.parametrize("ways", [(2,), (2, 2), (2, 2, 2), (4, 2)], ids=str)
def test_an_unreplicated_mlp_takes_its_share(ways):
    plan = search(build("mlp-4-256", batch=64), SearchOptions(ways=ways, placements="S"))
    alone = lower(single_worker(plan)).workers[0].arena_bytes
    worst = max(lower(plan).workers, key=lambda worker: worker.arena_bytes - peak_in_flight(worker))
    assert worst.arena_bytes - peak_in_flight(worst) <= 1.1 * alone / plan.workers
