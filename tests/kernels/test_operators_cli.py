"""The command `operators`."""

import json

import tdl
import tensor_partitioner.commands.operators as cli
from executor.kernels import KERNELS
from tests.launcher import outcome


def run(capsys, *args):
    return outcome(capsys, cli.main, *args)


def test_list_shows_every_operator(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, err = run(capsys, "list")
    assert (status, err) == (0, "")
    assert all(name in out for name in tdl.catalog)
    row = next(line for line in out.splitlines() if " mm " in line)
    assert "k:Sum" in row


def test_list_as_json(capsys):
    status, out, _ = run(capsys, "list", "--json")
    assert status == 0
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert set(entries) == set(tdl.catalog)
    assert entries["mm"]["strategies"] == {"i": None, "j": None, "k": "Sum"}
    assert entries["mm"]["has_kernel"]
    assert entries["mm"]["has_gradient"]
    assert not entries["sgd"]["has_gradient"]
    assert entries["relu"]["is_elementwise"]
    assert entries["max_pool2d_with_indices"]["refusals"]["wy"]


def test_check_as_json(capsys):
    status, out, _ = run(capsys, "check", "mm", "--cases", "2", "--json", "--backend", "numpy")
    (result,) = json.loads(out)
    assert status == 0
    assert result["operator"] == "mm"
    assert result["failures"] == []
    assert result["checks"] > 10


def test_a_failing_operator_is_named_with_status_1(capsys, monkeypatch):
    monkeypatch.setitem(KERNELS, "neg", KERNELS["relu"])
    status, out, err = run(capsys, "check", "neg", "--backend", "numpy")
    assert status == 1
    assert "FAILED" in out
    assert err.startswith("error: operator neg: kernel: output 0 is ")
    assert err.count("\n") == 1


def test_an_unknown_operator_is_one_line_with_suggestions_and_status_2(capsys):
    status, out, err = run(capsys, "check", "convolutoin")
    assert (status, out) == (2, "")
    assert err.startswith("error: unknown operator 'convolutoin': did you mean convolution")
    assert err.count("\n") == 1
    status, _, err = run(capsys, "check", "zzzzzz")
    assert status == 2
    assert "operators list" in err
