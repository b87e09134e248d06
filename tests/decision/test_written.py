"""Plans and pages that the command `decide` writes of its best, whatever that does with the batch."""

from pathlib import Path

import pytest

import planner
from planner.export.setup import parallel_of
from planner.graph.facts import batch_size, recomputed
from tensor_partitioner.commands import decide, plan
from tensor_partitioner.commands.plan import LEAST_BYTES
from tests.project.test_plan_command import run

OWN = Path(__file__).parents[2] / "examples" / "own_model.py"
ZOO = ("transformer-4-64", "--heads", 4, "--sequence", 32, "--vocabulary", 256, "--batch", 32)
WITHOUT = """
from planner.graph import GraphBuilder, Optimizer, training_graph
from planner.models.layers import classify, linear


def make(batch=64):
    b = GraphBuilder("float32")
    return training_graph(b, classify(b, linear(b, b.input("x", (batch, 16)), 8, "fc")), Optimizer("sgd"))
"""


@pytest.mark.parametrize("words", [("--pin", "dp=8"), ("--pin", "tp=2", "--pin", "zero=1"), ("--pin", "pp=2")])
def test_a_plan_is_in_micro_batches_and_computes_again_as_its_name_says(words, tmp_path):
    file = tmp_path / "plan.json"
    cut = ("--pin", "micro-batch=2", "--pin", "recompute=full", *words)
    assert run(decide.main, *ZOO, "--topo", "hgx-h100", *cut, "--page", tmp_path / "page.html", "-o", file) == 0
    written = planner.load(file)
    assert written.graph.micro_batches == 32 // (2 * parallel_of(written).dp)
    assert recomputed(written.graph)


def test_a_function_that_cuts_its_batch_is_asked_to(tmp_path):
    file = tmp_path / "plan.json"
    cut = ("--pin", "micro-batch=4")
    assert run(decide.main, f"{OWN}:two_layers", "--topo", "uniform-4", *cut, "-o", file) == 0
    assert planner.load(file).graph.micro_batches == 64 // (4 * 4)


@pytest.mark.parametrize("function", ["pytorch_model.py:make", "mlp.py:make"])
def test_a_module_is_cut_into_micro_batches_and_computes_again(function, tmp_path):
    """Its function has parameters for neither; the loss is a mean, so that their sums are the batch's."""
    pytest.importorskip("torch")
    file, module = tmp_path / "plan.json", OWN.with_name(function.partition(":")[0])
    cut = ("--pin", "micro-batch=2", "--pin", "dp=4", "--pin", "recompute=none")
    assert run(decide.main, f"{module}:make", "--topo", "uniform-4", *cut, "-o", file) == 0
    whole, written = planner.model(f"{module}:make"), planner.load(file).graph
    assert written.micro_batches * batch_size_of_one(written) == batch_size(whole) == batch_size(written)
    again = planner.model(f"{module}:make", micro_batches=2, recompute="segments")
    assert recomputed(again)
    assert {name for name in whole.tensors if whole.tensors[name].role == "weight"} <= set(again.tensors)


def batch_size_of_one(graph):
    """Return the samples of a micro-batch."""
    (samples,) = {tensor.shape[0] for tensor in graph.tensors.values() if tensor.role == "input" and tensor.shape}
    return samples


def test_a_page_goes_without_the_plan_that_a_function_makes_no_graph_for(tmp_path, capsys):
    (tmp_path / "own.py").write_text(WITHOUT)
    page, words = tmp_path / "page.html", (f"{tmp_path}/own.py:make", "--topo", "uniform-4", "--pin", "micro-batch=4")
    assert run(decide.main, *words, "--page", page) == 0
    assert "note: the page does not show the plan" in capsys.readouterr().err
    assert page.stat().st_size > 0
    assert run(decide.main, *words, "-o", tmp_path / "plan.json") == 2
    assert "parameters for --micro-batches" in capsys.readouterr().err


def test_one_device_has_a_plan_and_no_advice_to_take_one(tmp_path, capsys):
    file = tmp_path / "plan.json"
    assert run(decide.main, "mlp-2-64", "--batch", 8, "--topo", "uniform-1", "-o", file) == 0
    assert planner.load(file).workers == 1
    assert "One device is" not in capsys.readouterr().out


def test_plan_for_a_machine_keeps_words_and_refuses_what_it_would_not_keep(capsys, tmp_path):
    file = tmp_path / "plan.json"
    assert run(plan.main, *ZOO, "--topo", "hgx-h100", "--pin", "tp=2", "-o", file) == 0
    assert parallel_of(planner.load(file)).tp == 2
    capsys.readouterr()
    for words in (("--pin", "*.w=R"), ("--forbid", "*.w=R"), ("--search", "joint")):
        assert run(plan.main, *ZOO, "--topo", "hgx-h100", *words) == 2
        said = capsys.readouterr().err
        assert "--workers K" in said
        assert said.count("\n") == 1


def test_only_of_a_search_it_is_said_that_it_found_the_fewest_bytes(capsys):
    assert run(plan.main, "mlp-2-64", "--batch", 8, "--workers", 2) == 0
    assert LEAST_BYTES in capsys.readouterr().out
    assert run(plan.main, "mlp-2-64", "--batch", 8, "--workers", 2, "--search", "data-parallel") == 0
    assert LEAST_BYTES not in capsys.readouterr().out
