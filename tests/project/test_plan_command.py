"""The command `plan` when all is well."""

import json
import re

import pytest

from planner.plans.plan_json import load_plan
from planner.search import SearchOptions, search
from tensor_partitioner.commands.compare import main as compare
from tensor_partitioner.commands.plan import LEAST_BYTES, main
from tests.launcher import exit_status


def run(main, *arguments):
    return exit_status(main, [str(argument) for argument in arguments])


def test_plan_is_written_and_described(tmp_path, capsys):
    plan, description = tmp_path / "plan.json", tmp_path / "description.json"
    options = ("--batch", "12", "--workers", "6", "--seed", "5", "--optimizer", "adam")
    assert run(main, "mlp-2-8", *options, "-o", plan, "--json", description) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    saved = load_plan(plan)
    assert (saved.ways.factors, saved.seed, saved.search.model) == ((3, 2), 5, "mlp-2-8")
    assert saved.graph.tensors["labels"].shape == (12,)
    assert any(node.op == "adam" for node in saved.graph.nodes)
    data = json.loads(description.read_text())
    assert data["bytes"] == saved.total_bytes == sum(data["step_bytes"])
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
    assert load_plan(tmp_path / "other.json").ways.factors == (4, 2)
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
    assert run(main, "examples/product.py:product", "--ways", "2,2", "-o", tmp_path / "one.json") == 0
    graph = json.loads((tmp_path / "one.json").read_text())["graph"]
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    assert run(main, tmp_path / "graph.json", "--ways", "2,2", "-o", tmp_path / "two.json") == 0
    first, second = (load_plan(tmp_path / name) for name in ("one.json", "two.json"))
    assert (first.layouts, first.strategies) == (second.layouts, second.strategies)


def shown_of(capsys, *arguments):
    assert run(main, *arguments) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_a_saved_plan_is_explained_without_a_search(tmp_path, capsys, monkeypatch):
    file, data = tmp_path / "plan.json", tmp_path / "data.json"
    searched = shown_of(capsys, "mlp-2-16", "--workers", "4", "--explain", "-o", file, "--json", data)
    searched = searched.removesuffix(f"{LEAST_BYTES}\n")
    record = json.loads(data.read_text())
    home = "tensor_partitioner.commands.planning_options"
    monkeypatch.setattr(f"{home}.plan", lambda *_, **__: pytest.fail("searched again"))
    assert shown_of(capsys, file, "--explain", "--json", data) == searched
    assert json.loads(data.read_text()) == record
    assert shown_of(capsys, file) == searched[: searched.index("bytes by kind")]
    assert sum(sum(kind["step_bytes"]) for kind in record["kinds"].values()) == load_plan(file).total_bytes
    assert len(record["arena_bytes"]) == 4


def test_an_explanation_says_how_far_from_the_best_the_plan_can_be(tmp_path, capsys):
    """The recursion knows no bound; the joint search's is below it and, where it ends, the best plan's bytes."""
    by_time = ("--objective", "time", "--topo", "p2.8xlarge")
    for more in ((), ("--search", "hybrid"), ("--search", "data-parallel"), by_time):
        file = tmp_path / "plan.json"
        command = ("mlp-3-24", "--batch", "8", "--ways", "2,2", *more)
        shown = shown_of(capsys, *command, "--explain", "-o", file)
        placements = load_plan(file).search.placements
        best = search(load_plan(file).graph, SearchOptions((2, 2), "joint", placements)).total_bytes
        record = load_plan(file).search
        assert record.bound_by == "joint"
        assert re.search(r"lower bound .*, (gap \d+\.\d%|exact) \(by joint\)", shown)
        assert f"placements {placements}, ways 2 x 2" in shown
        if record.objective == "bytes":
            assert record.lower_bound == best <= load_plan(file).total_bytes
            assert record.gap == pytest.approx(load_plan(file).total_bytes / best - 1, abs=1e-6)
        else:
            assert record.cost / 2 < record.lower_bound <= record.cost * (1 + 1e-12)
        assert "lower bound" in shown_of(capsys, file)
        assert "(by joint)" not in shown_of(capsys, *command)


def test_an_example_plan_is_explained(capsys):
    """The two exchanges of the worked example: 64 bytes of W, 64 of partial sums, by its only operator."""
    shown = shown_of(capsys, "examples/product.plan.json", "--explain")
    (row,) = [line.split() for line in shown.splitlines() if line.startswith("│ mm ")]
    assert " ".join(row) == "│ mm │ 1 │ 64 │ 64 │ 128 │ 100.0% │"


def test_two_plans_are_compared(tmp_path, capsys):
    first, other, data = tmp_path / "one.json", tmp_path / "other.json", tmp_path / "data.json"
    assert run(main, "mlp-2-16", "--ways", "4", "-o", first) == 0
    assert run(main, "mlp-2-16", "--ways", "2,2", "--placements", "S,R", "-o", other) == 0
    capsys.readouterr()
    shown = shown_of(capsys, "--diff", first, other, "--json", data)
    totals = [load_plan(file).total_bytes for file in (first, other)]
    assert all(f"{total:,}" in shown for total in totals)
    assert json.loads(data.read_text())["facts"]["bytes per iteration"] == totals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{one}", "--workers", "3"), r"one\.json is a saved plan, .*expected no --workers"),
        (("{one}", "-o", "{new}"), r"one\.json is a saved plan, .*expected no -o"),
        (("--diff", "{one}", "{one}", "--seed", "3"), r"--diff compares saved plans: expected no --seed"),
        (("mlp-2-8", "--diff", "{one}", "{one}"), r"--diff compares saved plans: expected no model"),
        (("--diff", "{one}"), r"--diff.*2 arguments"),
        (("--diff", "{one}", "{absent}"), r"absent\.json: No such file"),
        (("--diff", "{one}", "examples/product.plan.json"), r"n\.json: its graph differs from that of one\.json"),
        (("--diff", "{one}", "{one}", "--json", "{one}"), r"one\.json: cannot write to this file"),
    ],
)
def test_what_saved_plans_refuse(tmp_path, capsys, arguments, message):
    files = {name: tmp_path / f"{name}.json" for name in ("one", "new", "absent")}
    assert run(main, "mlp-2-8", "--ways", "2", "-o", files["one"]) == 0
    capsys.readouterr()
    assert run(main, *(argument.format(**files) for argument in arguments)) == 2
    assert re.fullmatch(rf"error: .*{message}.*\n", capsys.readouterr().err)


def test_what_a_saved_plan_reports_of_its_search_has_the_right_types(tmp_path, capsys):
    file = tmp_path / "plan.json"
    assert run(main, "mlp-2-8", "--workers", "2", "--search", "joint", "-o", file) == 0
    data = json.loads(file.read_text())
    assert load_plan(file).search.lower_bound == data["reported"]["bytes"]["total"]
    capsys.readouterr()
    for section, key in ((data["search"], "name"), (data["reported"]["search"], "winner")):
        kept = section[key]
        section[key] = ["joint"]
        file.write_text(json.dumps(data))
        assert run(main, file) == 2
        assert re.search(rf"Expected `str`, got `array` - at `\$\.search\.{key}`", capsys.readouterr().err)
        section[key] = kept
    data["reported"]["search"]["name"] = "recursive"
    file.write_text(json.dumps(data))
    assert run(main, file) == 2
    assert re.search(r"\$\.reported\.search\.name: expected 'joint', as in \$\.search", capsys.readouterr().err)


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
