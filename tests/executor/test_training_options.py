"""The options of training on the command line of one rank: what is printed and written, and what is refused."""

import csv
import re
import resource
import shutil
import sys

import click
import numpy as np
import pytest
from safetensors.numpy import load_file

from executor.checkpoint import checkpoints
from executor.data import data_tensors
from executor.process.launch import SharedError
from planner.errors import InputError
from planner.models import build
from planner.plans.plan import Plan, single_worker
from planner.plans.plan_json import load_plan
from planner.report.schema import read_reports
from planner.search import SearchOptions, search
from tests.executor.training import run

LINE = re.compile(r"step (\d+) of (\d+), epoch (\d+\.\d+), loss \S+, lr (\S+)(?:, held-out accuracy \S+%)?, \S+ ms.*")


def saved_plan(folder, model="mlp-2-64", name="plan.json", **options):
    plan: Plan = single_worker(search(build(model, batch=400, **options), SearchOptions(ways=(2,))))
    plan.save(folder / name)
    return folder / name


def logged(capsys):
    return [match.groups() for match in map(LINE.fullmatch, capsys.readouterr().out.splitlines()) if match]


def test_a_line_is_logged_so_often(tmp_path, capsys):
    plan = saved_plan(tmp_path, lr=0.02)
    digits = (plan, "--data", "digits", "--steps", 8)
    assert run(*digits, "--log", "epoch", "--schedule", "step=4:0.5") == 0
    assert logged(capsys) == [("4", "8", "1.00", "0.02"), ("8", "8", "2.00", "0.01")]
    assert run(*digits, "--log", "3") == 0
    assert [line[0] for line in logged(capsys)] == ["3", "6"]
    assert run(*digits, "--log", "step") == 0
    assert len(logged(capsys)) == 8
    assert run(*digits) == 0
    assert logged(capsys) == []


def test_a_table_goes_on_where_training_does(tmp_path, capsys):
    """Its numbers are those of the report; what was written behind the checkpoint is written again."""
    plan, table, reports, folder = saved_plan(tmp_path, lr=0.02), tmp_path / "log.csv", tmp_path / "r", tmp_path / "run"
    asked = (plan, "--data", "digits", "--schedule", "step=4:0.5", "--log-to", table, "--json", reports)
    assert run(*asked, "--steps", 5, "--checkpoint", folder, "--every", 3) == 0
    losses = read_reports(reports)[0].losses
    shutil.rmtree(checkpoints(folder)[-1])
    assert run(*asked, "--steps", 8, "--resume", folder, "--eval") == 0
    losses = [*losses[:3], *read_reports(reports)[0].losses]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 9))
    assert [float(row["loss"]) for row in rows] == losses
    assert [float(row["lr"]) for row in rows] == [0.02] * 4 + [0.01] * 4
    assert [float(row["epoch"]) for row in rows] == [step / 4 for step in range(1, 9)]
    assert [bool(row["held_out_accuracy"]) for row in rows] == [False] * 7 + [True]
    assert float(rows[-1]["held_out_accuracy"]) == read_reports(reports)[0].eval_accuracy
    assert all(float(row["samples_per_s"]) > 0 and "tokens_per_s" not in row for row in rows)
    assert logged(capsys) == []
    table.write_text("other\nfile\n")
    with pytest.raises(SharedError, match=r"log\.csv: expected a table whose first column is the number of steps"):
        run(*asked, "--steps", 9, "--resume", folder)


def test_scalars_for_tensorboard(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="it is an extra")
    plan, reports = saved_plan(tmp_path, lr=0.02), tmp_path / "reports"
    asked = (plan, "--data", "digits", "--log", "2", "--log-to", tmp_path / "board", "--json", reports)
    assert run(*asked, "--steps", 6, "--checkpoint", tmp_path / "run") == 0
    losses = [*read_reports(reports)[0].losses[1::2]]
    assert run(*asked, "--steps", 8, "--resume", tmp_path / "run") == 0
    losses.append(read_reports(reports)[0].losses[-1])
    read = events.EventAccumulator(str(tmp_path / "board")).Reload()
    assert [(event.step, event.value) for event in read.Scalars("loss")] == list(
        zip((2, 4, 6, 8), map(pytest.approx, losses), strict=True)
    )
    assert set(read.Tags()["scalars"]) == {"loss", "lr", "step_ms", "samples_per_s"}


def test_no_tensorboard(tmp_path, monkeypatch):
    plan = saved_plan(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(SharedError, match=r"pip install 'tensor-partitioner\[tensorboard\]'"):
        run(plan, "--log-to", tmp_path / "board")


def test_evaluation_while_training_changes_nothing(tmp_path, capsys):
    plan, reports = saved_plan(tmp_path, lr=0.1), tmp_path / "reports"
    digits = (plan, "--data", "digits", "--steps", 7, "--json", reports)
    assert run(*digits, "--eval-every", "3") == 0
    (with_evaluations,) = read_reports(reports)
    assert [evaluation.step for evaluation in with_evaluations.evaluations] == [3, 6, 7]
    assert with_evaluations.eval_accuracy == with_evaluations.evaluations[-1].accuracy
    assert len({evaluation.accuracy for evaluation in with_evaluations.evaluations}) > 1
    assert run(*digits, "--eval") == 0
    (at_the_end,) = read_reports(reports)
    assert at_the_end.losses == with_evaluations.losses
    assert at_the_end.evaluations == with_evaluations.evaluations[-1:]


def test_training_goes_on_from_a_checkpoint(tmp_path, capsys):
    plan, folder, reports = saved_plan(tmp_path, optimizer="adam", lr=0.01), tmp_path / "run", tmp_path / "reports"
    asked = ("--data", "digits", "--schedule", "warmup=3,cosine=9", "--json", reports)
    assert run(plan, *asked, "--steps", 10) == 0
    (undisturbed,) = read_reports(reports)
    assert run(plan, *asked, "--steps", 5, "--checkpoint", folder, "--every", 2) == 0
    assert [path.name for path in checkpoints(folder)] == ["step-00000004", "step-00000005"]
    assert run(plan, "--json", reports, "--steps", 10, "--resume", folder, "--checkpoint", folder) == 0
    (resumed,) = read_reports(reports)
    assert (resumed.first_step, resumed.steps) == (5, 5)
    assert resumed.losses == undisturbed.losses[5:]
    assert resumed.settings["schedule"] == "warmup=3,cosine=9"
    assert resumed.settings["data"] == "digits"
    capsys.readouterr()
    assert run(plan, "--steps", 10, "--resume", folder) == 0
    assert capsys.readouterr().out == f"{plan}: 10 steps are done, 10 were requested\n"
    assert run(plan, "--steps", 10, "--resume", folder, "--schedule", "constant") == 0
    assert capsys.readouterr().out == f"{plan}: 10 steps are done, 10 were requested; --schedule has no effect\n"


def test_a_restart_begins_where_nothing_is_there_yet(tmp_path, capsys):
    plan, folder = saved_plan(tmp_path), tmp_path / "run"
    command = (plan, "--steps", 3, "--checkpoint", folder, "--resume", folder)
    assert run(*command) == 0
    assert f"{folder}: no checkpoint yet, training starts from step 0\n" in capsys.readouterr().out
    assert run(*command) == 0
    assert capsys.readouterr().out == f"{plan}: 3 steps are done, 3 were requested\n"


def test_what_is_left_to_do_where_all_steps_are_done(tmp_path, capsys):
    plan, folder, reports = saved_plan(tmp_path), tmp_path / "run", tmp_path / "reports"
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    asked = (plan, "--data", "digits", "--steps", 3, "--eval")
    assert run(*asked, "--checkpoint", folder, "--save-weights", first, "--json", reports) == 0
    capsys.readouterr()
    assert run(*asked, "--resume", folder, "--save-weights", second) == 0
    (report,) = read_reports(reports)
    assert f"plan.json: held-out accuracy {report.eval_accuracy:.2%}\n" in capsys.readouterr().out
    assert second.read_bytes() == first.read_bytes()
    with pytest.raises(SharedError, match="--trace needs a step to run: expected more --steps than the 3 that are"):
        run(*asked, "--resume", folder, "--trace", tmp_path / "trace")


def is_finite(checkpoint):
    tensors = load_file(checkpoint / "tensors.safetensors")
    return all(np.isfinite(tensor).all() for tensor in tensors.values())


@pytest.mark.parametrize("every", ["step", "7"])
def test_a_step_that_is_not_finite_ends_training(tmp_path, capsys, every):
    plan, folder, reports = saved_plan(tmp_path, lr=1e6), tmp_path / "run", tmp_path / "reports"
    diverging = (plan, "--data", "digits", "--steps", 50, "--json", reports)
    weights = tmp_path / "weights.safetensors"
    assert run(*diverging, "--checkpoint", folder, "--every", every, "--save-weights", weights) == 1
    (error,) = capsys.readouterr().err.splitlines()
    step = re.fullmatch(r"error: plan.json: step (\d+): (.+) is not finite: --on-nan skip undoes .*", error)
    (report,) = read_reports(reports)
    assert report.steps == int(step[1]) < 50
    assert None not in report.losses[:-1]
    last = [path.name for path in checkpoints(folder)][-1:]
    assert last == ([f"step-{report.steps - 1:08}"] if every == "step" else [])
    assert all(map(is_finite, checkpoints(folder)))
    assert not weights.exists()


def test_a_step_that_is_not_finite_is_taken_back(tmp_path, capsys):
    plan, folder = saved_plan(tmp_path, lr=1e6), tmp_path / "run"
    diverging = (plan, "--data", "digits", "--checkpoint", folder, "--every", "step", "--on-nan", "skip")
    assert run(*diverging, "--steps", 50) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert warnings
    assert all(re.fullmatch(r"warning: step \d+: .+ is not finite: the step is skipped", line) for line in warnings)
    last = checkpoints(folder)[-1]
    assert last.name == "step-00000050"
    assert is_finite(last)


def test_no_checkpoint_replaces_the_last_finite_one(tmp_path, capsys):
    plan, folder = saved_plan(tmp_path, lr=1e6), tmp_path / "run"
    diverging = (plan, "--data", "digits", "--checkpoint", folder, "--every", "step", "--on-nan", "continue")
    assert run(*diverging, "--steps", 50) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert warnings[-1].startswith("warning: step 50: ")
    assert warnings[-1].endswith(" is not finite: no checkpoint is written")
    assert len(warnings) + int(checkpoints(folder)[-1].name.removeprefix("step-")) == 50
    assert all(map(is_finite, checkpoints(folder)))


def test_where_there_is_no_room_for_a_checkpoint(tmp_path):
    plan, folder = saved_plan(tmp_path), tmp_path / "run"
    assert run(plan, "--steps", 2, "--checkpoint", folder) == 0

    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, most[1]))
    try:
        with pytest.raises(
            SharedError, match=rf"^{folder}/\.step-00000003\.part/tensors\.safetensors: File too large$"
        ) as caught:
            run(plan, "--steps", 9, "--every", 3, "--resume", folder, "--checkpoint", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert caught.value.status == 2
    assert {path.name for path in folder.iterdir()} == {".lock", "step-00000002"}
    assert run(plan, "--steps", 9, "--resume", folder, "--checkpoint", folder) == 0


def test_weights_that_cannot_be_saved_cost_no_checkpoint(tmp_path, monkeypatch):
    def full(_beside, _path):
        raise OSError(28, "No space left on device", "weights")

    monkeypatch.setattr("executor.weights.saving.take_place", full)
    with pytest.raises(SharedError, match="No space left"):
        run(saved_plan(tmp_path), "--checkpoint", tmp_path / "run", "--save-weights", tmp_path / "weights")
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step-00000001"]


def test_resuming_on_a_file_needs_it_in_the_same_order(tmp_path):
    plan, folder, path = saved_plan(tmp_path), tmp_path / "run", tmp_path / "x.npz"
    (images, labels) = (tensor for tensor in data_tensors(load_plan(plan).graph))
    arrays = {images.name: np.ones(images.shape), labels.name: np.zeros(labels.shape, np.int32)}
    np.savez(path, **arrays)
    assert run(plan, "--data", path, "--in-order", "--checkpoint", folder) == 0
    again = (plan, "--resume", folder, "--steps", 2)
    expected = r"expected --data FILE.npz or FILE.safetensors or a FOLDER of .npy --in-order$"
    with pytest.raises(SharedError, match=expected):
        run(*again)
    content = "FILE of content [0-9a-f]{12}"
    with pytest.raises(SharedError, match=f"expected data {content}, found {content} --in-order$"):
        run(*again, "--data", path)
    assert run(*again, "--data", path, "--in-order") == 0


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A plan, the checkpoints of its training, and a plan of another graph."""
    folder = tmp_path_factory.mktemp("saved")
    plan, other = saved_plan(folder), saved_plan(folder, name="other.json", lr=0.5)
    assert run(plan, "--steps", 1, "--data", "digits", "--checkpoint", folder / "run") == 0
    return plan, folder / "run", other


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ("PLAN --every 3", InputError, "expected --checkpoint DIR, found none"),
        ("PLAN --resume RUN --weights OTHER", InputError, "weights of its checkpoint: expected no --weights"),
        ("PLAN --resume RUN --check", InputError, "--check compares training from step 0"),
        ("PLAN --save-weights /dev/null", InputError, "--save-weights /dev/null: expected a regular file"),
        ("PLAN PLAN --checkpoint NEW", InputError, "--checkpoint applies to one training: expected one plan, found 2"),
        ("PLAN PLAN --resume RUN", InputError, "--resume applies to one training"),
        ("PLAN --checkpoint RUN", SharedError, "expected no checkpoints of another training, found step-00000001"),
        ("PLAN --resume NEW", SharedError, "NEW: expected checkpoints, found neither"),
        ("OTHER --resume RUN", SharedError, "expected a checkpoint of the plan's graph, found one of another"),
        ("PLAN --resume RUN --data random", SharedError, "expected data random, found digits"),
        ("PLAN --schedule linear", SharedError, r"expected \[warmup=STEPS,\].*found 'linear'"),
        ("PLAN --log 0", click.BadParameter, "expected a number of steps from 1, or 'step' or 'epoch', found '0'"),
        ("PLAN --log often", click.BadParameter, "found 'often'"),
        ("PLAN --eval", SharedError, "expected data with samples held out, found random"),
        ("PLAN --data text", SharedError, "data set text: expected"),
        ("PLAN --data NEW.npz", SharedError, "NEW.npz: No such file"),
    ],
)
def test_what_is_refused(saved, tmp_path, arguments, kind, says):
    plan, folder, other = saved
    named = {"PLAN": plan, "RUN": folder, "OTHER": other, "NEW": tmp_path / "NEW", "NEW.npz": tmp_path / "NEW.npz"}
    with pytest.raises((kind, SharedError), match=says) as caught:
        run(*(named.get(word, word) for word in arguments.split()))
    assert not isinstance(caught.value, SharedError) or caught.value.status == 2
    assert {path.name for path in folder.iterdir()} == {".lock", "step-00000001"}
    assert not (tmp_path / "NEW").exists()
