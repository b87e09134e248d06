"""What a rank loads, and what is said where ranks were started with different options."""

import pytest

import planner
from executor.cluster import single_rank
from tensor_partitioner.commands.execute import execute
from tensor_partitioner.commands.on_ranks import command_main
from tests.launcher import exit_status


def test_options_are_compared_as_they_are_written(monkeypatch):
    compared = {}
    monkeypatch.setattr(
        "tensor_partitioner.commands.on_ranks.require_alike", lambda _, options: compared.update(options)
    )
    monkeypatch.setattr(execute, "invoke", lambda _: 0)
    assert (
        exit_status(
            command_main, execute, single_rank(1), ["a.json", "b.json", "--every", "epoch", "--check", "--json", "x"]
        )
        == 0
    )
    assert compared["plans"] == "a.json b.json"
    said = {"--every": "epoch", "--check": "given", "--eval": "not given", "--trace": "not given", "--json": "x"}
    assert {name: compared[name] for name in said} == said


RUN = """
import atexit, pathlib, sys
from tensor_partitioner.commands.entry import execute

atexit.register(lambda: pathlib.Path(sys.argv[1]).with_suffix(".modules").write_text("\\n".join(sys.modules)))
execute()
"""
ABSENT = ("search", "models", "planning", "explanations", "pytorch")


@pytest.mark.mpi
def test_a_rank_loads_nothing_that_plans_or_verifies(ranks, tmp_path):
    path = tmp_path / "plan.json"
    planner.plan(planner.model("mlp-2-64", batch=8), workers=1).save(path)
    ranks.succeed(1, "-c", RUN, path, "--steps", "2", "--check", "--backend", "numpy")
    modules = path.with_suffix(".modules").read_text().split()
    assert "executor.worker" in modules
    rooms = (*(f"planner.{room}" for room in ABSENT), "operator_verification", "simulator", "scipy", "sklearn", "torch")
    assert [module for module in modules if f"{module}.".startswith(tuple(f"{room}." for room in rooms))] == []
