"""The command `plan` when all is well."""

import json

import pytest

from planner.cli import main
from planner.plan_json import load_plan
from planner.report.cli import main as compare


def run(main, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_plan_is_written_and_described(tmp_path, capsys):
    plan, description = tmp_path / "plan.json", tmp_path / "description.json"
    options = ("--batch", "12", "--workers", "6", "--seed", "5", "--optimizer", "adam", "--classes", "7")
    assert run(main, "mlp-2-8", *options, "-o", plan, "--json", description) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = load_plan(plan)
    assert (found.ways, found.seed, found.search["model"]) == ((3, 2), 5, "mlp-2-8")
    assert found.graph.tensors["labels"].shape == (12,)
    assert any(node.op == "adam" for node in found.graph.nodes)
    data = json.loads(description.read_text())
    assert data["bytes"] == found.total_bytes == sum(data["step_bytes"])
    assert f"{data['bytes']:,}" in shown.out


@pytest.mark.parametrize("workers", [1, 5])
def test_any_number_of_workers(workers, capsys):
    assert run(main, "mlp-2-8", "--workers", workers) == 0
    assert "bytes per iteration" in capsys.readouterr().out


def test_workers_are_factored_unless_ways_are_given(tmp_path, capsys):
    assert run(main, "mlp-2-16", "--workers", "8", "-o", tmp_path / "plan.json") == 0
    shown = capsys.readouterr().out
    assert all(f" {ways}: " in shown for ways in ("2 x 2 x 2", "4 x 2", "8"))
    assert run(main, "mlp-2-16", "--ways", "4,2", "-o", tmp_path / "other.json") == 0
    assert "factors tried" not in capsys.readouterr().out
    assert load_plan(tmp_path / "other.json").ways == (4, 2)
    assert load_plan(tmp_path / "plan.json").total_bytes <= load_plan(tmp_path / "other.json").total_bytes


def test_a_plan_is_a_function_of_its_input(tmp_path):
    texts = []
    for name in ("one.json", "two.json"):
        assert run(main, "mlp-2-16", "--ways", "2,2", "-o", tmp_path / name) == 0
        data = json.loads((tmp_path / name).read_text())
        del data["reported"]["search"]["seconds"]
        texts.append(json.dumps(data))
    assert texts[0] == texts[1]


def test_a_graph_file_and_a_function_give_the_same_plan(tmp_path):
    assert run(main, "docs/examples/product.py:product", "--ways", "2,2", "-o", tmp_path / "one.json") == 0
    graph = json.loads((tmp_path / "one.json").read_text())["graph"]
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    assert run(main, tmp_path / "graph.json", "--ways", "2,2", "-o", tmp_path / "two.json") == 0
    one, two = (load_plan(tmp_path / name) for name in ("one.json", "two.json"))
    assert (one.layouts, one.strategies) == (two.layouts, two.strategies)


def test_compare_exits_1_where_bytes_differ(tmp_path, capsys):
    matrix = [[0, 8], [8, 0]]
    report = {
        "source": "simulator", "machine": "m", "hardware": "h", "plan": "p.json", "model": "x", "searcher": "s",
        "placements": "S", "workers": 2, "ways": [2], "planned_bytes": matrix, "bytes": matrix, "arena_bytes": [1, 1],
    }  # fmt: skip
    (tmp_path / "simulated.json").write_text(json.dumps(report))
    (tmp_path / "equal.json").write_text(json.dumps(report | {"source": "executor", "machine": "n"}))
    other = {"source": "executor", "machine": "n", "bytes": [[0, 8], [9, 0]]}
    (tmp_path / "other.json").write_text(json.dumps(report | other))
    assert run(compare, tmp_path / "simulated.json", tmp_path / "equal.json") == 0
    assert "2 of 2 equal" in capsys.readouterr().out
    assert run(compare, tmp_path / "simulated.json", tmp_path / "other.json") == 1
    assert "1 of 2 UNEQUAL" in capsys.readouterr().out
