"""Every command on terminals of 60, 80 and 120 columns: no row of a table is too long, and no figure is broken.

A sentence is one line, which the terminal wraps.
"""

import re
import shlex
import sys

import pytest

import planner
from tensor_partitioner.commands import compare, decide, export, operators, plan, simulate, topo
from tensor_partitioner.commands.entry import COMMANDS
from tests.launcher import exit_status

MAINS = {
    module.__name__.rpartition(".")[2]: module.main for module in (compare, decide, operators, plan, simulate, topo)
} | {"export-plan": export.main}
MODEL = "mlp-2-16 --batch 8 --workers 4"
PREPARED = (
    f"plan {MODEL} -o plan.json",
    f"plan {MODEL} --placements S -o other.json",
    "simulate plan.json --topo p2.8xlarge --tasks --json report.json",
)
LINES = (
    "plan plan.json --explain", f"plan {MODEL} --why-not fc1.w=R", "plan --diff plan.json other.json",
    "export-plan plan.json --to jax", "simulate plan.json --topo p2.8xlarge",
    "decide mlp-2-16 --topo uniform-8 --vary batch=8,16 --vary topo=p2.8xlarge,dgx-a100",
    "compare report.json report.json --pairs", "topo show p2.16xlarge", "topo show p4d-nodes-2",
    "topo show p2.8xlarge gpu0 gpu7", "operators list", "operators check mm",
)  # fmt: skip
FIGURE = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w.,])")
BORDERS = (*"─│┃┌┏┡└├╭╰",)
STYLE = re.compile(r"\x1b\[[\d;]*m")


def longest_row(shown):
    """Return the width of the tables, or of all lines where there is no table."""
    lines = shown.splitlines()
    return max(map(len, [line for line in lines if line.startswith(BORDERS)] or lines))


def shown_by(line, capsys):
    name, *arguments = shlex.split(line)
    ended = exit_status(MAINS[name], arguments)
    shown = capsys.readouterr()
    assert not ended, shown.err
    return STYLE.sub("", shown.out)


@pytest.mark.parametrize("line", LINES)
def test_no_row_is_broken(line, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for command in PREPARED:
        shown_by(command, capsys)
    figures = set(FIGURE.findall(shown_by(line, capsys)))
    assert figures
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = shown_by(line, capsys)
        assert longest_row(shown) <= width
        assert sorted(figures - set(FIGURE.findall(shown))) == []


@pytest.mark.mpi
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_row_of_ranks_is_broken(width, command, mpirun, tmp_path):
    saved = tmp_path / "plan.json"
    planner.plan(planner.model("mlp-2-16", batch=8), workers=2).save(saved)
    calibrating = ("calibrate", saved, "--only-plans", "--seconds", "0.1", "-o", tmp_path / "here.yaml")
    for line in (("execute", saved, "--check"), calibrating):
        done = command(*line, launcher=(mpirun, "-n", "2"), environment={"COLUMNS": str(width)})
        assert done.returncode == 0, done.stderr
        assert 0 < longest_row(done.stdout) <= width


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_wrapped_at_its_words(name, command):
    done = command(name, "--help", environment={"COLUMNS": "60"})
    assert (done.returncode, done.stdout[:7]) == (0, "Usage: ")
    for line in done.stdout.splitlines():
        assert len(line) <= 60 or max(map(len, line.split())) > 40, line
