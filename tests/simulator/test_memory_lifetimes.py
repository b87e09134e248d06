"""What workers ask an allocator for, by hand and of real plans."""

import pytest

from planner.models import build
from planner.program.arena import Storage, plan_arena
from planner.program.lower import lower
from planner.program.tasks import Compute, WorkerProgram
from planner.search import SearchOptions, search
from simulator.caching import peak_reserved_bytes
from simulator.lifetimes import holders, overwritten, requests
from tests.simulator.programs import buffer, peak_live_bytes

MODELS = {"mlp-3-256": {}, "cnn-5-16": {"image": 16}, "wresnet-14-1": {"image": 32}, "rnn-2-128": {"unroll": 3}}


def test_what_overwrites_in_place_is_one_request():
    buffers = [buffer("a", 40, 0, 1), buffer("b", 40, 1, 2), buffer("c", 40, 2, 3), buffer("d", 40, 4, 4)]
    worker = WorkerProgram(0, (Compute((), "other", 0.0, 0),) * 5, tuple(buffers), 0)
    assert overwritten(worker) == {0: 1, 1: 2}
    assert holders(worker) == [0, 0, 0, 3]
    assert requests(worker) == (Storage(40, 0, 3), Storage(40, 4, 4))


@pytest.mark.parametrize("model", MODELS)
def test_no_allocation_is_below_what_lives(model):
    program = lower(search(build(model, batch=16, **MODELS[model]), SearchOptions((2, 2), placements="S")))
    worker = max(program.workers, key=lambda worker: worker.arena_bytes)
    wanted = requests(worker)
    live = peak_live_bytes(wanted)
    assert live <= min(worker.arena_bytes, peak_reserved_bytes(wanted), plan_arena([], wanted)[2])
