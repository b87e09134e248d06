"""Checkpoints: what is saved under one plan is read under any other, to the bit; what is no checkpoint is refused."""

import json
import os
import random
import re
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from executor.checkpoint import Checkpoint, CheckpointError, Saver, checkpoints, graph_digest, saved_tensors
from executor.process.launch import SharedError
from executor.values import indices
from executor.weights import Safetensors, saving
from planner.graph.ir import Entry
from planner.layout import owned_by_all
from planner.layout.region import whole as whole_region
from planner.plans.plan import single_worker
from tests.cross.cases import Case, graph
from tests.cross.random_plans import random_plan
from tests.executor.test_faults import EXECUTE, ROOT
from tests.executor.training import trained
from tests.launcher import in_one_line

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
def test_ranks_write_their_tiles_into_one_file(seed, tmp_path):
    rng = random.Random(seed)
    of = graph(rng.choice(["cnn", "mlp", "rnn"]), "float64", "adam")
    plan = random_plan(of, (2, 3), rng)
    tensors = {tensor.name: tensor for tensor in saved_tensors(of)}
    regions = {name: owned_by_all(t.shape, plan.layouts[name], plan.ways) for name, t in tensors.items()}
    wholes = {name: np.arange(t.elements, dtype=t.dtype).reshape(t.shape) for name, t in tensors.items()}
    entries = {name: Entry(name, t.shape, t.dtype) for name, t in tensors.items()}
    header, starts = saving._laid_out(entries)
    saving._begin(tmp_path / "file", header, starts, {})
    for rank in range(6):
        tiles = {n: whole[(*np.ix_(*map(indices, regions[n][rank])), ...)] for n, whole in wholes.items()}
        programs = SimpleNamespace(training=SimpleNamespace(regions=regions))
        trainer = SimpleNamespace(
            cluster=SimpleNamespace(rank=rank), graph=of, programs=programs, view=tiles.__getitem__
        )
        saving._write_tiles(tmp_path / "file", starts, trainer, entries)
    written = Safetensors(tmp_path / "file")
    for name, expected in wholes.items():
        np.testing.assert_array_equal(written.read(name, whole_region(expected.shape)), expected)


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
    (left / "tensors.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="expected checkpoints, found neither"):
        Checkpoint.of(tmp_path, PLAN)
    saved(tmp_path)
    assert not left.exists()


def test_a_manifest_says_what_training_goes_on_from(tmp_path):
    trainer = saved(tmp_path)
    manifest = Checkpoint.of(tmp_path, PLAN).manifest
    assert (manifest.step, manifest.seed, manifest.data, manifest.schedule) == (2, PLAN.seed, "random", "constant")
    assert manifest.graph == graph_digest(PLAN.graph)
    assert trainer.view("step") == 2
    again = trained(PLAN, 0)
    Checkpoint.of(tmp_path, PLAN).restore(again)
    assert again.view("step") == 2


DAMAGE = {
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file(tmp_path, how):
    saved(tmp_path)
    DAMAGE[how](tmp_path / "step-00000002" / "tensors.safetensors")
    with in_one_line(SharedError, r"tensors.safetensors: (damaged: its SHA-256 is not|No such file)") as caught:
        Checkpoint.of(tmp_path, PLAN).restore(trained(PLAN, 0))
    assert caught.value.status == 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"step": 2', '"step": 3', "damaged: expected SHA-256"),
        ('"chunks": [', '"chunks": ["more",', "damaged: expected SHA-256"),
        ("{", "", "expected a manifest of format 'checkpoint/2', found another"),
        ('"step": 2', '"stop": 2', "unknown field"),
        ('"step": 2', '"step": "2"', "Expected `int`, got `str`"),
        ("checkpoint/2", "checkpoint/1", "expected a manifest of format 'checkpoint/2', found another"),
    ],
)
def test_a_damaged_manifest(tmp_path, old, new, says):
    saved(tmp_path)
    path = tmp_path / "step-00000002" / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CheckpointError, match=says) as caught:
        Checkpoint.of(tmp_path, PLAN)
    assert str(path) in str(caught.value)


def test_checkpoints_of_another_run(tmp_path):
    saved(tmp_path)
    with pytest.raises(CheckpointError, match="expected a checkpoint of the plan's graph"):
        Checkpoint.of(tmp_path, single_worker(Case("mlp", (2,), "recursive", "S").plan()))
    with pytest.raises(CheckpointError, match="expected the plan's seed, 5, found 0"):
        Checkpoint.of(tmp_path, replace(PLAN, seed=5))


def test_a_folder_takes_one_job_at_a_time(tmp_path):
    """Of one process or of two; it is free again when the first has ended."""
    PLAN.save(tmp_path / "plan.json")
    line = [*EXECUTE, tmp_path / "plan.json", "--checkpoint", tmp_path / "run", "--backend", "numpy"]
    owner = f"process {os.getpid()} on {os.uname().nodename}"
    refused = f"{tmp_path / 'run'}: another job writes checkpoints here ({owner}): wait for it to end"
    trainer = trained(PLAN, 1)
    first = Saver(tmp_path / "run", trainer, "random", "constant")
    with pytest.raises(SharedError, match=re.escape(refused)) as caught:
        Saver(tmp_path / "run", trainer, "random", "constant")
    assert caught.value.status == 2
    other = subprocess.run(line, check=False, capture_output=True, text=True, cwd=ROOT)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert other.stderr.startswith(f"error: {refused}")
    del first, caught
    assert subprocess.run(line, check=False, capture_output=True, text=True, cwd=ROOT).stderr == ""


def test_links_in_a_folder_are_not_followed(tmp_path):
    """A folder may come from elsewhere: what its links lead to is neither emptied nor removed."""
    trainer, kept = saved(tmp_path / "run"), tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("as before")
    for name in ("step-00000001", ".step-00000003.part"):
        (tmp_path / "run" / name).symlink_to(kept)
    Saver(tmp_path / "run", trainer, "random", "constant").save(3)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "step-00000002", "step-00000003"}
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").symlink_to(kept / "file")
    with pytest.raises(SharedError, match=r"\.lock: Too many levels of symbolic links"):
        Saver(tmp_path / "run", trainer, "random", "constant")
    assert (kept / "file").read_text() == "as before"


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    saver = Saver(tmp_path, saved(tmp_path), "random", "constant")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("executor.checkpoint.os.fsync", full)
    with pytest.raises(SharedError, match=r"step-00000003.*: No space left on device") as caught:
        saver.save(3)
    assert caught.value.status == 2
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "step-00000002"}
