"""What workers ask an allocator for under the rules of Tofu's Section 6, by hand and of real plans."""

import pytest

from planner.models import build
from planner.program.lower import lower
from planner.program.tasks import (
    Compute,
    Kernel,
    LocalCopy,
    Message,
    Piece,
    Receive,
    Send,
    SlicedCall,
    Storage,
    Wait,
    WorkerProgram,
    plan_arena,
)
from planner.search import SearchOptions, search
from results.tofu_memory.caching import reserved_bytes
from results.tofu_memory.rules import Fetching, Reuse, peak_live_bytes, requests
from tests.simulator.programs import buffer

MODELS = {"mlp-3-256": {}, "cnn-5-16": {"image": 16}, "wresnet-14-1": {"image": 32}, "rnn-2-128": {"unroll": 3}}


def run(inputs, output):
    """A task that reads some buffers and writes another."""
    call = SlicedCall(tuple((number, ()) for number in inputs), ((output, ()),), {}, (), None)
    return Compute((Kernel("node", "op", {}, (call,)),), "other", 0.0, 0)


def worker(tasks, buffers):
    return WorkerProgram(0, tuple(tasks), tuple(buffers), 0)


def test_a_buffer_is_free_when_a_task_depends_on_all_its_users():
    # 0 makes a; 1 and 3 read a, making b and c; 2 is of another branch; 4 reads b and c; 5 reads what 4 made
    tasks = [run([], 0), run([0], 1), run([], 2), run([0], 3), run([1, 3], 4), run([4], 5)]
    spans = [("a", 0, 3), ("b", 1, 4), ("apart", 2, 2), ("c", 3, 4), ("d", 4, 5), ("e", 5, 5)]
    buffers = [buffer(name, 100 + i, first, last, offset=1000 * i) for i, (name, first, last) in enumerate(spans)]
    alone = worker(tasks, buffers)
    order = [Storage(100 + i, first, last) for i, (_, first, last) in enumerate(spans)]
    assert list(requests(alone)) == order
    # a: free before 4, as in the order; b and c: before 5; the others have no descendants behind all their users
    lasts = [3, 4, 5, 4, 5, 5]
    for reuse in (Reuse.OPERATORS, Reuse.DATA):
        assert [storage.last for storage in requests(alone, reuse)] == lasts


def exchange():
    """Buffer 0 is made, 20 bytes of it are sent, 30 come in, 10 stay: all into 3, which is read in the end."""
    half = (Piece((), (), 2),)
    tasks = [
        run([], 0),
        Send(0, 0, 1, (Message(1, half, 12, 0), Message(2, half, 8, 12))),
        Receive(0, 3, 2, (Message(1, half, 30, 0),), (LocalCopy(0, half),)),
        run([], 5),
        Wait(0),
        run([3], 4),
        run([4], 4),
    ]
    buffers = [
        buffer("made", 100, 0, 4, offset=0),
        buffer("made going out", 20, 1, 4, offset=200, kind="staging"),
        buffer("made coming in", 30, 2, 4, offset=300, kind="staging"),
        buffer("made for b", 60, 4, 5, offset=400, kind="fetch"),
        buffer("b", 40, 5, 6, offset=600),
        buffer("apart", 70, 3, 3, offset=700),
    ]
    return worker(tasks, buffers)


def test_fetching():
    kept = [Storage(100, 0, 4), Storage(60, 4, 5), Storage(40, 5, 6), Storage(70, 3, 3)]
    staged = [kept[0], Storage(20, 1, 4), Storage(30, 2, 4), *kept[1:]]
    pieces = [Storage(12, 1, 4), Storage(8, 1, 4), Storage(30, 2, 4), Storage(8, 4, 4)]
    asked = {fetching: requests(exchange(), fetching=fetching) for fetching in Fetching}
    assert list(asked[Fetching.STAGED]) == staged
    assert list(asked[Fetching.FUSED]) == kept
    assert list(asked[Fetching.SPLIT]) == [*kept, *pieces]


def test_only_as_between_operators_does_the_end_of_a_transfer_depend_on_what_is_sent():
    names = [b.name for b in exchange().buffers]
    lasts = {
        reuse: dict(zip(names, (storage.last for storage in requests(exchange(), reuse)), strict=True))
        for reuse in (Reuse.OPERATORS, Reuse.DATA)
    }
    # "made" is free when 5 reads what 4 put together, where 1, which sends it, comes before that
    assert [lasts[Reuse.OPERATORS][name] for name in names] == [4, 4, 4, 5, 6, 6]
    assert [lasts[Reuse.DATA][name] for name in names] == [6, 6, 4, 5, 6, 6]


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
