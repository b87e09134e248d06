"""From a model to a comparison, with the commands that a user types; and how ranks end when something is wrong."""

import json
import re

import pytest

from planner.report.schema import read_reports

pytestmark = pytest.mark.mpi
PRODUCT = "examples/product.plan.json"


def test_plan_simulate_execute_compare(command, mpirun, tmp_path):
    plan, simulated, executed = (tmp_path / name for name in ("plan.json", "simulated.json", "executed.json"))
    planned = command("plan", "examples/own_model.py:two_layers", "--workers", "4", "-o", plan)
    assert planned.returncode == 0, planned.stderr
    priced = command("simulate", plan, "--topo", "p2.8xlarge", "--json", simulated)
    assert priced.returncode == 0, priced.stderr
    options = ("--data", "digits", "--steps", "30", "--eval", "--check", "--json", executed)
    run = command("execute", plan, *options, launcher=(mpirun, "-n", "4"))
    assert run.returncode == 0, run.stderr
    compared = command("compare", simulated, executed)
    assert compared.returncode == 0, compared.stdout
    assert "12 of 12 equal" in compared.stdout
    (prediction,), (measurement,) = read_reports(simulated), read_reports(executed)
    assert prediction.bytes == measurement.bytes == prediction.planned_bytes
    assert prediction.total_bytes == json.loads(plan.read_text())["reported"]["bytes"]["total"]
    assert prediction.arena_bytes == measurement.arena_bytes
    assert measurement.losses[-1] < measurement.losses[0] / 2
    assert measurement.eval_accuracy > 0.8
    assert measurement.check.passed


def test_an_operator_of_ones_own(command, mpirun, tmp_path):
    file, plan, executed = "examples/own_operator.py", tmp_path / "plan.json", tmp_path / "executed.json"
    planned = command("plan", f"{file}:model", "--ways", "2,2", "-o", plan)
    assert planned.returncode == 0, planned.stderr
    refused = command("execute", plan, launcher=(mpirun, "-n", "4"))
    assert refused.returncode == 2
    assert "squared_relu" in one_error(refused)
    options = ("--operators", file, "--data", "digits", "--steps", "10", "--check", "--json", executed)
    run = command("execute", plan, *options, launcher=(mpirun, "-n", "4"))
    assert run.returncode == 0, run.stderr
    (measurement,) = read_reports(executed)
    assert measurement.check.passed
    assert measurement.bytes == measurement.planned_bytes


def one_error(done):
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("ranks", "line", "says"),
    [
        (5, PRODUCT, r"product\.plan\.json: .*4 ranks.*5"),
        (4, "README.md", r"README\.md"),
        (4, f"{PRODUCT} --colour red", "--colour"),
        (None, PRODUCT, "mpirun -n 4"),
    ],
)
def test_what_is_refused(command, mpirun, ranks, line, says):
    done = command("execute", *line.split(), launcher=(mpirun, "-n", str(ranks)) if ranks else ())
    assert done.returncode == 2
    assert re.search(says, one_error(done))
