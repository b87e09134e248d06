"""How commands end."""

import sys

import click
import pytest

from planner.errors import GraphError, PlanError
from planner.failures import JobError
from planner.report.schema import ReportError
from planner.report.tables import facts
from tdl import TDLError
from tensor_partitioner.commands.console import command_errors, progress, stdout
from topologies import TopologyError


def ends(error, capsys):
    @command_errors
    @click.command("fails")
    def main():
        raise error

    with pytest.raises(SystemExit) as ended:
        main([])
    shown = capsys.readouterr()
    assert shown.out == ""
    return ended.value.code, shown.err


@pytest.mark.parametrize("kind", [GraphError, PlanError, TDLError, TopologyError, ReportError, click.UsageError])
def test_bad_input_is_status_2(kind, capsys):
    assert ends(kind("what\n  and where"), capsys) == (2, "error: what and where\n")


def test_files_are_named(capsys):
    error = FileNotFoundError(2, "No such file or directory", "plan.json")
    assert ends(error, capsys) == (2, "error: plan.json: No such file or directory\n")


def test_failed_jobs_are_status_1(capsys):
    assert ends(JobError("rank 3 ended"), capsys) == (1, "error: rank 3 ended\n")
    status, line = ends(KeyboardInterrupt(), capsys)
    assert (status, line.strip()) == (130, "error: interrupted")


def test_unexpected_failures_name_their_place(capsys, monkeypatch):
    status, line = ends(ZeroDivisionError("by zero"), capsys)
    assert status == 1
    assert line.startswith("error: ZeroDivisionError: by zero at test_console.py:")
    assert line.count("\n") == 1
    monkeypatch.setenv("PARTITIONER_TRACEBACK", "1")
    assert "Traceback" in ends(ZeroDivisionError("by zero"), capsys)[1]


def test_usage_errors(capsys):
    @command_errors
    @click.command("counts")
    @click.option("--number", type=int, required=True)
    def main(number):
        click.echo(number)

    for arguments, status in ((["--number", "x"], 2), ([], 2), (["--colour"], 2), (["--number", "3"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == status
        shown = capsys.readouterr()
        assert shown.err.count("\n") == (1 if status else 0)
        assert shown.out == ("" if status else "3\n")


def test_status_of_an_early_exit():
    @command_errors
    @click.command("differs")
    @click.pass_context
    def main(context):
        context.exit(1)

    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 1


def test_progress_is_quiet_in_a_pipe(capsys, monkeypatch):
    with progress("working", 2) as advance:
        advance()
        advance()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("working", 2) as advance:
        advance()


def test_names_are_shown_as_they_are(capsys):
    stdout().print(facts("plan[red].json", [("largest", "[/b]fc1.w :warning:")]))
    shown = capsys.readouterr().out
    assert "plan[red].json" in shown
    assert "[/b]fc1.w :warning:" in shown
