"""Checkpoints: what is saved under one plan is read under any other, to the bit; what is no checkpoint is refused."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from executor.checkpoint import Checkpoint, CheckpointError, Saver, checkpoints
from executor.checkpoint.manifest import graph_digest, places, plan_digest, saved_tensors
from executor.process.launch import SharedError
from planner.layout import elements, owned_by_all
from planner.plans.plan import single_worker
from tests.cross.cases import Case, graph
from tests.cross.random_plans import random_plan
from tests.executor.training import trained

PLAN = single_worker(Case("cnn", (2,), "recursive", "S,R", "float64", "adam").plan())


def saved(folder):
    trainer = trained(PLAN, 2)
    Saver(folder, trainer, "random", "constant").save(2)
    return trainer


@pytest.mark.mpi
@pytest.mark.parametrize("ways", [(2, 2), (3,)], ids=str)
def test_any_plan_reads_what_another_wrote(ways, ranks, tmp_path):
    rng = random.Random(f"checkpoints {ways}")
    paths = []
    for model in ("cnn", "mlp", "rnn")[: 4 - len(ways)]:
        of = graph(model, "float64", "adam")
        for number in range(2):
            paths.append(tmp_path / f"{model}-{number}.json")
            random_plan(of, ways, rng).save(paths[-1])
    for pair in zip(paths[::2], paths[1::2], strict=True):
        done = ranks(np.prod(ways), "-m", "tests.executor.on_ranks", "checkpoints", tmp_path / pair[0].stem, *pair)
        assert done.stderr == ""
        for differing, apart in json.loads(done.stdout):
            assert differing == []
            assert apart <= 1e-10


@pytest.mark.parametrize("seed", range(5))
def test_every_element_is_written_once(seed):
    rng = random.Random(seed)
    of = graph(rng.choice(["cnn", "mlp", "rnn"]), "float64", "adam")
    plan = random_plan(of, (2, 3), rng)
    tensors = saved_tensors(of)
    found = places(tensors, {t.name: owned_by_all(t.shape, plan.layouts[t.name], plan.ways) for t in tensors})
    for tensor in tensors:
        assert sum(elements(place.region) for place in found if place.tensor is tensor) == tensor.elements
    for rank in range(6):
        mine = [place for place in found if place.rank == rank]
        assert [place.start for place in mine] == [0, *(place.stop for place in mine)][: len(mine)]


def test_the_last_two_are_kept(tmp_path):
    saver = Saver(tmp_path, trained(PLAN, 1), "random", "constant")
    for step in (1, 2, 30):
        saver.save(step)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002", "step-00000030"]
    assert Checkpoint.of(tmp_path, PLAN).manifest.step == 30
    assert Checkpoint.of(tmp_path / "step-00000002", PLAN).manifest.step == 2


def test_what_a_killed_run_left_is_no_checkpoint_and_goes(tmp_path):
    left = tmp_path / ".step-00000007.part"
    left.mkdir()
    (left / "rank-0000.bin").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="expected checkpoints, found none"):
        Checkpoint.of(tmp_path, PLAN)
    saved(tmp_path)
    assert not left.exists()


def test_a_manifest_says_what_training_goes_on_from(tmp_path):
    trainer = saved(tmp_path)
    manifest = Checkpoint.of(tmp_path, PLAN).manifest
    assert (manifest.step, manifest.seed, manifest.data, manifest.schedule) == (2, PLAN.seed, "random", "constant")
    assert manifest.graph == graph_digest(PLAN.graph)
    assert manifest.plan == plan_digest(PLAN)
    assert trainer.view("step") == 2
    again = trained(PLAN, 0)
    Checkpoint.of(tmp_path, PLAN).restore(again)
    assert again.view("step") == 2


def test_digests_tell_plans_apart():
    of = graph("mlp", "float64", "adam")
    plans = [random_plan(of, (2, 2), random.Random(seed)) for seed in (1, 2)]
    assert len({plan_digest(plan) for plan in (*plans, replace(plans[0], ways=(4,)), PLAN)}) == 4


DAMAGE = {
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file(tmp_path, how):
    saved(tmp_path)
    DAMAGE[how](tmp_path / "step-00000002" / "rank-0000.bin")
    with pytest.raises(SharedError, match=r"rank-0000.bin: (damaged: expected \d+ bytes|No such file)") as found:
        Checkpoint.of(tmp_path, PLAN).restore(trained(PLAN, 0))
    assert found.value.status == 2
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"step": 2', '"step": 3', "damaged: expected SHA-256"),
        ('"layouts": {', '"layouts": {"more": ["S0"],', "damaged: expected SHA-256"),
        ("{", "", "Expected `object`"),
        ('"step": 2', '"stop": 2', "unknown field"),
        ('"step": 2', '"step": "2"', "Expected `int`, got `str`"),
        ("checkpoint/1", "checkpoint/2", "damaged"),
    ],
)
def test_a_damaged_manifest(tmp_path, old, new, says):
    saved(tmp_path)
    path = tmp_path / "step-00000002" / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CheckpointError, match=says) as found:
        Checkpoint.of(tmp_path, PLAN)
    assert str(path) in str(found.value)


def test_checkpoints_of_another_run(tmp_path):
    saved(tmp_path)
    with pytest.raises(CheckpointError, match="expected a checkpoint of the plan's graph"):
        Checkpoint.of(tmp_path, single_worker(Case("mlp", (2,), "recursive", "S").plan()))
    with pytest.raises(CheckpointError, match="expected the plan's seed, 5, found 0"):
        Checkpoint.of(tmp_path, replace(PLAN, seed=5))


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    saver = Saver(tmp_path, saved(tmp_path), "random", "constant")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("executor.checkpoint.writing.os.fsync", full)
    with pytest.raises(SharedError, match=r"step-00000003.*: No space left on device") as found:
        saver.save(3)
    assert found.value.status == 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
