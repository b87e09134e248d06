import json

import numpy as np
import pytest

from tests.cross.cases import Case
from tests.executor.on_ranks import own
from tests.executor.programs import EACH, WORKERS, expected

pytestmark = pytest.mark.mpi
SCRIPT = ("-m", "tests.executor.on_ranks")
ENOUGH_S = 10


ROUTES = {"messages": ("p2p", "all"), "shared": ("shared", "all"), "both": ("shared", "apart")}
"""A transport, and whether all ranks are taken to share a host."""


def printed(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def exchanged(ranks):
    return {name: printed(ranks(WORKERS, *SCRIPT, "exchange", *route)) for name, route in ROUTES.items()}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("wait", ["spin", "doze"])
@pytest.mark.parametrize("reducer", ["Sum", "Prod", "Max", "Min"])
def test_shares_are_fetched_and_reduced(exchanged, route, reducer, wait):
    for worker, (results, _, counted) in enumerate(exchanged[route][f"{reducer} {wait}"]):
        for iteration, result in enumerate(results):
            assert result == expected(own(worker, iteration), reducer).tolist()
        assert counted == [0 if peer == worker else 6 * EACH * 8 for peer in range(WORKERS)]


def test_one_message_per_pair_and_transfer_counted_where_it_is_sent(exchanged):
    nbytes = EACH * 8
    for rows in exchanged["messages"].values():
        for worker, (_, sends, _) in enumerate(rows):
            peers = [peer for peer in range(WORKERS) if peer != worker]
            assert sends == [[peer, transfer, nbytes] for _ in range(3) for transfer in (0, 1) for peer in peers]


def test_nothing_is_sent_to_who_shares_the_memory(exchanged):
    assert all(not sends for rows in exchanged["shared"].values() for _, sends, _ in rows)


@pytest.mark.parametrize("left_out", ["nothing", "reads", "overwrites"])
def test_every_wait_is_needed(ranks, left_out):
    results = printed(ranks(WORKERS, *SCRIPT, "unordered", left_out))
    right = [expected(own(worker, 0), "Sum").tolist() for worker in range(WORKERS)]
    assert (results == right) == (left_out == "nothing")


CASES = [
    Case(model, (2, 2), searcher, placements)
    for model in ("mlp", "cnn", "wresnet", "rnn")
    for searcher, placements in (("recursive", "S"), ("data-parallel", "S,R"))
]


def test_what_mpi_was_given_is_what_was_planned(ranks, tmp_path):
    paths = [tmp_path / f"{case.name}.json" for case in CASES]
    for case, path in zip(CASES, paths, strict=True):
        case.plan().save(path)
    counts = printed(ranks(4, *SCRIPT, "plans", *paths))
    assert len(counts) == len(CASES)
    for at_the_door, counted, planned in counts:
        assert at_the_door == counted == planned
        assert np.sum(planned) > 0


@pytest.mark.parametrize("wanted", [False, True])
def test_an_exception_on_one_rank_ends_the_job_with_a_traceback_for_those_who_ask(ranks, wanted):
    done = ranks(3, *SCRIPT, "fail", "raised", environment={"PARTITIONER_TRACEBACK": "1"} if wanted else {})
    assert done.returncode != 0
    assert done.seconds < ENOUGH_S
    assert "error: rank 1: RuntimeError: this rank has had enough" in done.stderr
    assert ("Traceback" in done.stderr) == wanted


def test_a_killed_rank_ends_the_job(ranks):
    done = ranks(3, *SCRIPT, "fail", "killed")
    assert done.returncode != 0
    assert done.seconds < ENOUGH_S
