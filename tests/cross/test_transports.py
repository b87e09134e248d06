"""Every transport, one or both of them at once, leaves the same bits, sends the same bytes and takes the same arena."""

import json
import random

import pytest

from tests.cross.cases import graph
from tests.cross.cells import CELLS, RUNS, WAYS, differences
from tests.cross.random_plans import random_plan
from tests.executor.conftest import Ranks

pytestmark = pytest.mark.mpi
SAMPLE = [random.Random(f"cell of {ways}").choice([cell for cell in CELLS if cell.ways == ways]) for ways in WAYS]


def drawn(ways):
    rng = random.Random(f"drawn for {ways}")
    return random_plan(graph(rng.choice(["mlp", "cnn", "rnn"]), "float32", "sgd"), ways, rng)


@pytest.mark.parametrize("cell", SAMPLE, ids=lambda cell: cell.name)
def test_transports_differ_in_nothing(cell, tmp_path):
    """One plan that was searched for and one that nobody searched for, with uneven parts and partial sums."""
    plans = [cell.plan(), drawn(cell.ways)]
    paths = [tmp_path / f"{number}.json" for number in range(len(plans))]
    for path, plan in zip(paths, plans, strict=True):
        plan.save(path)
    done = Ranks().succeed(cell.workers, "-m", "tests.cross.equality", *paths)
    told = json.loads(done.stdout)
    for outcome in told:
        assert len(outcome["runs"]) == len(RUNS)
        assert differences(outcome) == []


def test_a_difference_is_told():
    run = {"digest": "a", "bytes": [[0, 1], [1, 0]], "arenas": [5, 5], "predicted arenas": [5, 5]}
    outcome = {"planned": [[0, 1], [1, 0]], "runs": [run, run]}
    assert differences(outcome) == []
    for change in ({"digest": "b"}, {"bytes": [[0, 0], [1, 0]]}, {"arenas": [5, 6]}):
        assert len(differences({**outcome, "runs": [run, {**run, **change}]})) == 1
