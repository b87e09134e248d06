"""Files that commands write: checked before the work, named where they fail, and never another's."""

import os
from pathlib import Path

import pytest

import tensor_partitioner
from planner.errors import GraphError, InputError, PlanError
from planner.files import check_written, write_file
from planner.graph import GraphBuilder, build as building
from tensor_partitioner.commands.plan import main as plan
from tensor_partitioner.commands.simulate import main as simulate
from tests.launcher import exit_status


def refused(main, capsys, *arguments):
    ended = exit_status(main, [str(argument) for argument in arguments])
    shown = capsys.readouterr()
    assert ended == 2
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def test_a_file_that_cannot_be_written_is_named():
    with pytest.raises(OSError, match="/dev/full"):
        write_file("/dev/full", "text")


def test_a_pipe_is_written_to():
    reading, writing = os.pipe()
    with open(reading) as pipe:
        write_file(f"/dev/fd/{writing}", "text")
        os.close(writing)
        assert pipe.read() == "text"


def test_full_standard_output(command, tmp_path):
    full = ("sh", "-c", '"$0" "$@" > /dev/full')
    done = command("plan", "mlp-2-8", "--workers", "2", "-o", tmp_path / "plan.json", launcher=full)
    assert (done.returncode, done.stderr) == (2, "error: standard output: No space left on device\n")


def test_what_cannot_be_read_is_bad_input(tmp_path):
    for load in (tensor_partitioner.load, tensor_partitioner.load_operators):
        with pytest.raises(InputError, match=r"absent: No such file"):
            load(tmp_path / "absent")


def test_a_missing_folder_is_found_before_the_search(capsys, monkeypatch, tmp_path):
    home = "tensor_partitioner.commands.planning_options"
    monkeypatch.setattr(f"{home}.load_model", lambda *_: pytest.fail("the model was built"))
    for option in ("-o", "--json"):
        error = refused(plan, capsys, "mlp-2-8", "--workers", "2", option, tmp_path / "no" / "plan.json")
        assert error == f"error: {tmp_path}/no/plan.json: No such file or directory\n"


def test_nothing_replaces_what_is_read_or_written_already(tmp_path):
    (tmp_path / "plan.json").touch()
    check_written((tmp_path / "one.json", None, tmp_path / "two.json"), (tmp_path / "plan.json",))
    with pytest.raises(PlanError, match=r"plan\.json: cannot write to this file, it is what this command reads"):
        check_written((tmp_path / "." / "plan.json",), (tmp_path / "plan.json",))
    with pytest.raises(PlanError, match=r"one\.json: cannot write to this file, it is another output"):
        check_written((tmp_path / "one.json", tmp_path / "one.json"))
    (tmp_path / "link.json").symlink_to(tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"link\.json: cannot write to this file, it is what this command reads"):
        check_written((tmp_path / "link.json",), (tmp_path / "plan.json",))
    check_written((Path("/dev/null"), Path("/dev/null")))


def test_a_command_replaces_nothing_that_it_reads(capsys, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("{}")
    for option in ("--json", "--trace"):
        assert "reads" in refused(simulate, capsys, file, "--topo", "uniform-8", option, file)
    assert "reads" in refused(plan, capsys, file, "--workers", "2", "-o", file)
    assert file.read_text() == "{}"


def test_graphs_beyond_reason(monkeypatch):
    monkeypatch.setattr(building, "MOST_NODES", 3)
    b = GraphBuilder()
    x = b.input("x", (2,))
    for number in range(3):
        x = b.apply("relu", x, name=f"r{number}")
    with pytest.raises(GraphError, match=r"'r3' \(relu\): the graph has more than 3 nodes"):
        b.apply("relu", x, name="r3")
