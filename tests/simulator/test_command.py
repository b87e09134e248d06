"""The command `simulate`: models planned first, the same from Python, and what is refused."""

import re

import pytest

from planner.plans.plan_json import load_plan
from planner.report.schema import read_reports
from simulator import simulate
from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main
from tests.launcher import exit_status

MODEL = (
    *("mlp-2-16", "--batch", "8", "--workers", "4", "--dtype", "float32", "--optimizer", "momentum"),
    *("--topo", "uniform-8"),
)


def run(*arguments, command=main):
    return exit_status(command, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "mlp.json"
    assert run(*MODEL[:-2], "-o", path, command=plan) == 0
    return path


def but_its_name(report):
    return {name: getattr(report, name) for name in report.__struct_fields__ if name != "plan"}


def test_a_model_is_planned_first(saved, tmp_path, capsys):
    of_model, of_plan, kept = (tmp_path / name for name in ("one.json", "other.json", "kept.json"))
    assert run(*MODEL, "--json", of_model, "-o", kept) == 0
    assert run(saved, "--topo", "uniform-8", "--json", of_plan) == 0
    shown = capsys.readouterr().out
    assert "simulated: kept.json" in shown
    assert "simulated: mlp.json" in shown
    (planned,), (loaded,) = read_reports(of_model), read_reports(of_plan)
    assert but_its_name(planned) == but_its_name(loaded)
    assert load_plan(kept).layouts == load_plan(saved).layouts


def test_what_planning_is_asked_for_is_done(tmp_path):
    asked = ("--search", "data-parallel", "--ways", "4", "--objective", "time")
    assert run(*MODEL, *asked, "--json", tmp_path / "r.json", "-o", tmp_path / "p.json") == 0
    kept, (report,) = load_plan(tmp_path / "p.json"), read_reports(tmp_path / "r.json")
    assert (kept.search.objective, kept.search.machine, report.searcher) == ("time", "uniform-8", "data-parallel")


def test_from_python_the_same_is_found(saved, tmp_path):
    assert run(saved, "--topo", "uniform-8", "--json", tmp_path / "r.json") == 0
    assert but_its_name(*read_reports(tmp_path / "r.json")) == but_its_name(simulate(saved, "uniform-8"))


@pytest.mark.parametrize(
    "option",
    [
        ("--batch", "8"), ("--workers", "4"), ("--ways", "4"), ("--placements", "S"), ("--seed", "1"), ("-o", "p.json"),
        ("--objective", "bytes"), ("--memory", "1GiB"), ("--optimizer", "sgd"), ("--search", "joint"),
    ],
)  # fmt: skip
def test_a_saved_plan_is_not_planned_again(saved, capsys, option):
    assert run(saved, "--topo", "uniform-8", *option) == 2
    assert re.fullmatch(rf"error: .*mlp\.json is a saved plan, .*: expected no {option[0]}\n", capsys.readouterr().err)
