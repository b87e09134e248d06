"""How commands end."""

import re
import sys
import threading
import warnings
from importlib import import_module

import click
import pytest

from planner.errors import GraphError, PlanError
from planner.failures import JobError
from planner.report.schema import ReportError
from planner.report.tables import facts
from tdl import TDLError
from tensor_partitioner import display
from tensor_partitioner.commands.console import Command, command_errors, register_group, stdout
from tensor_partitioner.commands.decide import main as decide
from tensor_partitioner.commands.entry import COMMANDS
from tensor_partitioner.display import TrackedTask, status, tracked
from tests.launcher import exit_status
from topologies import TopologyError


def ends(error, capsys):
    @command_errors
    @click.command("fails")
    def main():
        raise error

    ended = exit_status(main, [])
    shown = capsys.readouterr()
    assert shown.out == ""
    return ended, shown.err


BAD_INPUT = (GraphError, PlanError, TDLError, TopologyError, ReportError, click.UsageError)
ENDS = [
    *((kind("what\n  and where"), 2, "what and where") for kind in BAD_INPUT),
    (FileNotFoundError(2, "No such file or directory", "plan.json"), 2, "plan.json: No such file or directory"),
    (JobError("rank 3 ended"), 1, "rank 3 ended"),
    (KeyboardInterrupt(), 130, "interrupted"),
]


@pytest.mark.parametrize(("error", "status", "says"), ENDS, ids=lambda value: type(value).__name__)
def test_a_failure_is_one_line_and_a_status(error, status, says, capsys):
    code, line = ends(error, capsys)
    assert (code, line.strip()) == (status, f"error: {says}")


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
        click.get_current_context().exit(number - 3)

    lines = (["--number", "x"], 2), ([], 2), (["--colour"], 2), (["--number", "3"], 0)
    for arguments, expected in lines:
        assert exit_status(main, arguments) == expected
        shown = capsys.readouterr()
        assert shown.err.count("\n") == (1 if expected else 0)
        assert shown.out == ("" if expected else "3\n")


def work(monkeypatch, *, on_terminal):
    """Two parts of work, during each of which the line is shown several times."""
    monkeypatch.setattr(display, "TERMINAL_S" if on_terminal else "PIPE_S", (0.0, 0.0))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal)
    shown = threading.Event()

    def heard(tasks, now):
        shown.set()
        return status(tasks, now)

    monkeypatch.setattr(display, "status", heard)

    @command_errors
    @click.command("works")
    def main():
        for _ in tracked("working", (1, 2)):
            shown.clear()
            shown.wait(10)

    exit_status(main, [])


def test_progress_is_a_line_that_goes_on_a_terminal_and_plain_lines_in_a_pipe(capsys, monkeypatch):
    work(monkeypatch, on_terminal=True)
    shown = capsys.readouterr().err
    assert shown.startswith(f"{display.ERASE}working: 0 of 2, 0 s")
    assert shown.endswith(display.ERASE)
    assert "\n" not in shown
    work(monkeypatch, on_terminal=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "working: 0 of 2, 0 s"
    assert any(re.fullmatch(r"working: 1 of 2, \d+ s, about \d+ s left", line) for line in lines)


def test_an_error_ends_the_line_of_unfinished_tasks(capsys, monkeypatch):
    monkeypatch.setattr(display, "PIPE_S", (0.01, 0.01))
    unfinished = []

    def fail():
        unfinished.append(tracked("working", (1, 2)))
        next(unfinished[0])
        raise PlanError("it fails")

    exit_status(command_errors(click.Command("works", callback=fail)), [])
    capsys.readouterr()
    assert not any(thread.name.endswith("(_show)") for thread in threading.enumerate())
    unfinished.clear()


def test_what_is_done_soon_is_not_spoken_of(capsys, monkeypatch):
    monkeypatch.setattr(display, "PIPE_S", (1000.0, 1000.0))
    exit_status(command_errors(click.Command("works", callback=lambda: list(tracked("working", (1, 2))))), [])
    assert capsys.readouterr().err == ""


def test_work_within_work_counts_towards_the_estimate():
    tasks = TrackedTask("searching", 4, 1, started=0.0), TrackedTask("alternatives", 2, 1, started=7.0)
    assert status(tasks, 9.0) == "searching: 1 of 4, alternatives: 1 of 2, 9 s, about 15 s left"
    assert status(tasks, 90.0).endswith(", 1 min 30 s, about 2 min 30 s left")
    assert status([TrackedTask("searching", 4, started=0.0)], 5.0) == "searching: 0 of 4, 5 s"


def test_work_says_how_fast_it_is():
    task = TrackedTask("p.json", 4, 2, started=0.0, amounts={"samples": 100, "tokens": 51200})
    assert status([task], 10.0) == "p.json: 2 of 4, 10 s, about 10 s left, 20 samples/s, 1.024e+04 tokens/s"


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert stdout().width > 10_000
    monkeypatch.setenv("COLUMNS", "72")
    assert stdout().width == 72


def test_names_are_shown_as_they_are(capsys):
    stdout().print(facts("plan[red].json", [("largest", "[/b]fc1.w :warning:")]))
    shown = capsys.readouterr().out
    assert "plan[red].json" in shown
    assert "[/b]fc1.w :warning:" in shown


def test_a_shell_is_told_what_may_follow(capsys, monkeypatch):
    monkeypatch.setenv("_COUNTS_TO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "counts-to --nu")
    monkeypatch.setenv("COMP_CWORD", "1")

    @command_errors
    @click.command("counts-to")
    @click.option("--number", type=int)
    def main(number):
        raise AssertionError(number)

    ended = exit_status(main, [])
    shown = capsys.readouterr()
    assert (ended, shown.out, shown.err) == (0, "plain,--number\n", "")


@pytest.mark.parametrize(
    ("line", "items"),
    [
        ("decide gpt2-m", ["file,gpt2-m", "plain,gpt2-medium"]),
        ("decide gpt2 --topo hgx-h100-", ["file,hgx-h100-", "plain,hgx-h100-nodes-"]),
        ("decide models/own", ["file,models/own"]),
        ("decide gpt2 --stack mega", ["plain,megatron", "plain,megatron-2021", "plain,megatron-deepspeed"]),
        ("decide gpt2 --stack o", ["plain,ours"]),
    ],
)
def test_a_shell_is_told_of_models_and_machines(line, items, capsys, monkeypatch):
    monkeypatch.setenv("_DECIDE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    assert (exit_status(decide, []), capsys.readouterr().out.splitlines()) == (0, items)


def test_help_has_options_in_groups_and_examples(capsys):
    register_group("Search", ("ways",))

    @command_errors
    @click.command("counts", cls=Command, examples=("counts 3 --ways 2",))
    @click.argument("number")
    @click.option("--ways", help="Of the search.")
    @click.option("--colour", help="Its own.")
    @click.option("-o", "output", help="A file.")
    def main(number, **_):
        raise AssertionError(number)

    exit_status(main, ["--help"])
    shown = capsys.readouterr().out
    assert "Of the search." not in shown
    assert re.search(r"--help-all +Show 1 more options", shown)
    exit_status(main, ["--help-all"])
    shown = capsys.readouterr().out
    titles = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert titles == ["Options of counts", "Search", "Files", "Options", "Examples"]
    by_title = dict(zip(titles, re.split(r"^\S.*:$", shown, flags=re.MULTILINE)[1:], strict=True))
    assert "--colour" in by_title["Options of counts"]
    assert "--ways" in by_title["Search"]
    assert "-o" in by_title["Files"]
    assert "--version" in by_title["Options"]
    assert "--help" in by_title["Options"]
    assert by_title["Examples"].strip() == "counts 3 --ways 2"


MODULES = {"export-plan": "export"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_begin_with_its_name(name):
    module = import_module(f"tensor_partitioner.commands.{MODULES.get(name, name)}")
    assert any(example.split()[0] == name for example in module.EXAMPLES) or f" {name} " in module.EXAMPLES[0]


def test_what_pytorch_says_of_inference_is_not_shown(capsys):
    nn = pytest.importorskip("torch").nn
    layer = nn.TransformerEncoderLayer(8, 2, 8)

    @command_errors
    @click.command("encodes")
    def main():
        warnings.warn("shown", UserWarning, stacklevel=1)
        nn.TransformerEncoder(layer, 1)

    with pytest.warns(UserWarning, match="enable_nested_tensor is True"):
        nn.TransformerEncoder(layer, 1)
    assert exit_status(main, []) == 0
    assert capsys.readouterr().err == "warning: shown\n"
