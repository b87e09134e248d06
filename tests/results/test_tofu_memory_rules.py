"""What workers ask an allocator for under the rules of Tofu's Section 6, by hand and of real plans."""

import pytest

from planner.models import build
from planner.program.lower import lower
from planner.program.tasks import (
    WorkerProgram,
    plan_arena,
)
from planner.search import SearchOptions, search
from results.tofu_memory.caching import reserved_bytes
from results.tofu_memory.rules import Fetching, Reuse, peak_live_bytes, requests

MODELS = {"mlp-3-256": {}, "cnn-5-16": {"image": 16}, "wresnet-14-1": {"image": 32}, "rnn-2-128": {"unroll": 3}}


def worker(tasks, buffers):
    return WorkerProgram(0, tuple(tasks), tuple(buffers), 0)


@pytest.mark.parametrize("model", MODELS)
def test_no_allocation_is_below_what_lives_and_less_frugal_rules_keep_more(model):
    program = lower(search(build(model, batch=16, **MODELS[model]), SearchOptions((2, 2), placements="S")))
    largest = max(program.workers, key=lambda worker: worker.arena_bytes)
    requested = {(reuse, way): requests(largest, reuse, way) for reuse in Reuse for way in Fetching}
    alive = {rule: peak_live_bytes(asked) for rule, asked in requested.items()}
    assert alive[Reuse.ORDER, Fetching.STAGED] <= largest.arena_bytes
    for rule, asked in requested.items():
        assert alive[rule] <= reserved_bytes(asked)
        assert alive[rule] <= plan_arena([], asked)[2]
    for way in Fetching:
        assert alive[Reuse.ORDER, way] <= alive[Reuse.OPERATORS, way] <= alive[Reuse.DATA, way]
    for reuse in Reuse:
        assert alive[reuse, Fetching.FUSED] <= alive[reuse, Fetching.STAGED] <= alive[reuse, Fetching.SPLIT]
