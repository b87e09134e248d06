"""Schedules and recomputation as the command `plan` takes them."""

import pytest

from planner.graph.facts import recomputed
from planner.plans.plan_json import load_plan
from tensor_partitioner.commands.plan import main
from tests.launcher import exit_status

MODEL = ("transformer-4-16", "--batch", "8", "--sequence", "8", "--vocabulary", "16", "--heads", "2")


def run(*arguments):
    return exit_status(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("options", "schedule", "stages"),
    [
        (("--workers", "2"), "accumulation", 1),
        (("--workers", "2", "--stages", "2"), "1f1b", 2),
        (("--workers", "4", "--stages", "2", "--schedule", "gpipe"), "gpipe", 2),
        (("--parallel", "pp=2,dp=2,schedule=interleaved:2"), "interleaved:2", 2),
        (("--parallel", "pp=2,schedule=zero-bubble"), "zero-bubble", 2),
    ],
)
def test_a_plan_says_its_schedule(options, schedule, stages, tmp_path, capsys):
    path = tmp_path / "plan.json"
    assert run(*MODEL, "--micro-batches", "4", *options, "-o", path) == 0
    assert load_plan(path).schedule == schedule
    assert (f"{stages}, {schedule}" in capsys.readouterr().out) == (stages > 1)
    assert run(path) == 0


@pytest.mark.parametrize("kind", ["full", "selective"])
def test_named_recomputation_is_applied(kind, tmp_path):
    path = tmp_path / "plan.json"
    assert run(*MODEL, "--parallel", f"pp=2,dp=2,micro-batch=1,recompute={kind}", "-o", path) == 0
    assert recomputed(load_plan(path).graph)


REFUSED = {
    "another recomputation": (
        ("--parallel", "tp=2,recompute=full", "--recompute", "selective"),
        "--parallel recompute=full: expected --recompute segments with it, or none, found selective",
    ),
    "a schedule without stages": (
        ("--workers", "2", "--schedule", "gpipe"),
        "schedule gpipe: needs at least 2 stages, found 1",
    ),
    "a schedule that is none": (("--workers", "2", "--stages", "2", "--schedule", "2f2b"), "found '2f2b'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_one_line(name, capsys):
    options, told = REFUSED[name]
    assert run(*MODEL, *options) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.splitlines()[-1].startswith(("error:", "Error:"))
