"""What is said where ranks were started with different options: their names and values, as a command line has them."""

import pytest

from executor.cluster import single_rank
from tensor_partitioner.commands.execute import execute
from tensor_partitioner.commands.on_ranks import command_main


def test_options_are_compared_as_they_are_written(monkeypatch):
    compared = {}
    monkeypatch.setattr("tensor_partitioner.commands.on_ranks.require_alike", lambda _, found: compared.update(found))
    monkeypatch.setattr(execute, "invoke", lambda _: 0)
    with pytest.raises(SystemExit) as ended:
        command_main(execute, single_rank(1), ["a.json", "b.json", "--every", "epoch", "--check", "--json", "x"])
    assert ended.value.code == 0
    assert compared["plans"] == "a.json b.json"
    said = {"--every": "epoch", "--check": "given", "--eval": "not given", "--trace": "not given", "--json": "x"}
    assert {name: compared[name] for name in said} == said
