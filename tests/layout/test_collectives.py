"""Collectives against the pieces of exchanges: every element, from whom to whom."""

import random
from collections import Counter

import numpy as np
import pytest

from planner.layout import REPLICATE, Collective, Exchange, Shard, Ways, collectives, fetch, owned_by_all
from planner.layout.communication import Group, collective
from planner.layout.ways import At
from planner.program.buffers import Cut
from planner.program.lower import lower
from planner.program.tasks import Receive, Send
from tests.cross.cases import MODELS, SHARED_WAYS, WAYS, Case, graph
from tests.cross.random_plans import random_plan

R = REPLICATE
S0, S1 = Shard(0), Shard(1)
SEARCHES = (("recursive", "S"), ("recursive", "S,R"), ("recursive", "S,R,P"), ("data-parallel", "S,R"))


def numbers(shape, region):
    """The elements of a region, as flat numbers in the tensor, in the local array's order."""
    every = np.arange(int(np.prod(shape))).reshape(shape)
    if len(region) != len(shape):  # a scalar that is elsewhere
        return np.empty(0, int)
    return every[np.ix_(*([n for start, stop in runs for n in range(start, stop)] for runs in region))]


def listed(shape, exchange):
    """What the pieces bring: {(from, to): elements}."""
    by_pair = {}
    for worker, share in enumerate(map(Cut(exchange).share, range(len(exchange.targets)))):
        for source, pieces in (*share.receives, (worker, share.local[0])):
            held = numbers(shape, exchange.sources[source])
            moved = [held[piece.source_slices].ravel() for piece in pieces]
            wanted = numbers(shape, exchange.targets[worker])
            assert [wanted[piece.target_slices].ravel().tolist() for piece in pieces] == [m.tolist() for m in moved]
            if pieces:
                by_pair[source, worker] = sorted(np.concatenate(moved).tolist())
    return by_pair


def brought(shape, exchange, operation):
    """What the collectives of the groups bring, by their definitions: {(from, to): elements}."""
    result = {}
    alone = [(w,) for w in range(exchange.ways.workers) if not any(w in group.workers for group in operation.groups)]
    for workers in (*(group.workers for group in operation.groups), *alone):
        for source in workers:
            for target in workers:
                had, left = (
                    set(numbers(shape, region).ravel().tolist())
                    for region in (exchange.sources[source], exchange.targets[target])
                )
                what = {
                    "all-gather": had,
                    "broadcast": had,
                    "reduce-scatter": left,
                    "reduce": left,
                    "all-reduce": had,
                    "all-to-all": had & left,
                }[operation.kind]
                if workers in alone:
                    what = had & left
                if what:
                    result[source, target] = sorted(what)
    return result


def check(shape, exchange, operation):
    """Compare an exchange with its collective; its groups are workers by digits at its steps, where any move."""
    assert listed(shape, exchange) == brought(shape, exchange, operation)
    assert (exchange.reducer is not None) == (operation.kind in ("reduce-scatter", "all-reduce", "reduce"))
    members = [worker for group in operation.groups for worker in group.workers]
    assert len({*members}) == len(members)
    assert {*np.concatenate(np.nonzero(exchange.moved())).tolist()} <= {*members}
    for group in operation.groups:
        digits = np.array([exchange.ways.digits(worker) for worker in group.workers])
        assert set(np.flatnonzero((digits != digits[0]).any(axis=0))) == set(operation.steps)
        assert len(group.workers) == np.prod([exchange.ways[step] for step in operation.steps])


def kinds(plan):
    """Check every transfer of a plan; count what they are."""
    counts, checked = Counter(), set()
    for work in plan.traffic().work:
        transfers = [(read.tensor, (read.exchange,)) for read in work.reads if read.exchange is not None]
        for tensor, hops in [*transfers, *((write.tensor, write.hops) for write in work.writes)]:
            for exchange, kind in zip(hops, collectives(hops), strict=True):
                if kind is not None and exchange not in checked:
                    check(plan.graph.tensors[tensor].shape, exchange, kind)
                    checked.add(exchange)
                if exchange.moved().any():
                    counts["messages" if kind is None else "all-reduce" if kind.is_half else kind.kind] += 1
    return counts


@pytest.mark.parametrize("ways", [*WAYS, *SHARED_WAYS], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_every_transfer_of_searched_plans(model, ways):
    """All that data parallelism of equal parts moves is all-reduces; other plans have some collective, too."""
    equal = not ways.shares and MODELS[model][1]["batch"] % ways.workers == 0
    for searcher, placements in SEARCHES:
        counts = kinds(Case(model, ways, searcher, placements).plan())
        assert counts["messages"] < counts.total()
        assert not (searcher == "data-parallel" and equal) or set(counts) == {"all-reduce"}


@pytest.mark.parametrize("ways", [*WAYS, *SHARED_WAYS], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_every_transfer_of_random_plans(model, ways):
    assert kinds(random_plan(graph(model, "float32", "sgd"), ways, random.Random(f"{model} {ways}")))


def exchange(have, want, ways=(2, 2), shape=(4, 4), **rest):
    """An exchange of a tensor that lies in one layout, and is wanted in another."""
    ways = Ways(ways)
    return Exchange(ways, *(owned_by_all(shape, layout, ways) for layout in (have, want)), **rest)


HALVES_AT_STEP_2 = (Group((0, 1), 8), Group((2, 3), 8))
BY_HAND = {
    "rows of all": ((S0, S0), (R, R), set(), Collective("all-gather", (0, 1), (Group((0, 1, 2, 3), 16),))),
    "columns within a half": ((S0, S1), (S0, R), set(), Collective("all-gather", (1,), HALVES_AT_STEP_2)),
    "rows become columns": (
        (S0, S0),
        (S0, S1),
        set(),
        Collective("all-to-all", (1,), (Group((0, 1), 4), Group((2, 3), 4))),
    ),
    "sums in shares": ((R, R), (S0, S0), {"reducer"}, Collective("reduce-scatter", (0, 1), (Group((0, 1, 2, 3), 16),))),
    "sums everywhere": ((S0, R), (S0, R), {"reducer"}, Collective("all-reduce", (1,), HALVES_AT_STEP_2)),
    "sums at one": ((S0, R), (S0, At(0)), {"reducer"}, Collective("reduce", (1,), HALVES_AT_STEP_2)),
    "from one to all": ((S0, At(0)), (S0, R), set(), Collective("broadcast", (1,), HALVES_AT_STEP_2)),
    "two at once": ((S0, R), (R, S0), {"reducer"}, None),
    "replicas": ((R, R), (S0, S1), {"fixed"}, None),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case):
    have, want, how, expected = BY_HAND[case]
    reducer = "Sum" if "reducer" in how else None
    fixed = frozenset({0, 1} if "fixed" in how else ())
    transfer = exchange(have, want, reducer=reducer, fixed=fixed)
    assert collective(transfer) == expected
    if expected is not None:
        check((4, 4), transfer, expected)


def test_uneven_parts_are_gathered_where_they_line_up():
    """Five rows over four: each half gathers its own two or three; what is cut anew at unlike places is messages."""
    operation = collective(exchange((S0, S0), (S0, R), shape=(5, 4)))
    assert operation == Collective("all-gather", (1,), (Group((0, 1), 8), Group((2, 3), 12)))
    check((5, 4), exchange((S0, S0), (S0, R), shape=(5, 4)), operation)
    by_shares, equal = Ways((2,), (3, 1)), Ways((2,))
    sources, targets = (owned_by_all((8, 1), (S0,), ways) for ways in (by_shares, equal))
    assert collective(Exchange(equal, sources, targets)) is None


def test_windows_and_what_was_fetched_before_are_messages():
    """Neighbours send a row each; of two fetches of one tensor the second brings the rest alone."""
    ways = Ways((4,))
    rows = owned_by_all((8, 4), (S0,), ways)
    bordered = tuple((((max(2 * w - 1, 0), min(2 * w + 3, 8)),), ((0, 4),)) for w in range(4))
    assert collective(fetch((8, 4), (S0,), bordered, ways)) is None
    everything = owned_by_all((8, 4), (R,), ways)
    assert collective(Exchange(ways, rows, everything)).kind == "all-gather"
    assert collective(Exchange(ways, rows, everything, already=(bordered,))) is None


def test_groups_in_which_nothing_moves_take_no_part():
    """A tensor of the first stage alone: its two workers gather it, those of the second have nothing to do with it."""
    ways, empty = Ways((2, 2)), ((), ((0, 4),))
    halves = owned_by_all((4, 4), (R, S0), ways)[:2]
    transfer = Exchange(ways, (*halves, empty, empty), (*owned_by_all((4, 4), (R, R), ways)[:2], empty, empty))
    operation = collective(transfer)
    assert operation == Collective("all-gather", (1,), (Group((0, 1), 16),))
    check((4, 4), transfer, operation)


def test_two_hops_are_the_halves_of_an_all_reduce():
    reduction = exchange((R, R), (S0, S0), reducer="Sum")
    halves = collectives((reduction, exchange((S0, S0), (R, R))))
    assert [(half.kind, half.is_half) for half in halves] == [("reduce-scatter", True), ("all-gather", True)]
    others = collectives((reduction, exchange((S0, S0), (S0, R))))
    assert [(half.kind, half.is_half) for half in others] == [("reduce-scatter", False), ("all-gather", False)]


def test_tasks_say_what_transfers_are():
    """Both halves of a transfer on all workers; of data parallelism every transfer, and each weight in two hops."""
    plan = Case("mlp", (2, 2), "data-parallel", "S,R").plan()
    tasks = [task for worker in lower(plan).workers for task in worker.tasks if isinstance(task, Send | Receive)]
    moving = [task for task in tasks if task.messages]
    by_transfer = {task.transfer: task.collective for task in moving}
    assert all(task.collective == by_transfer[task.transfer] for task in moving)
    assert {(operation.kind, operation.is_half) for operation in by_transfer.values()} == {
        ("reduce-scatter", True), ("all-gather", True), ("reduce", True), ("broadcast", True)}  # fmt: skip
