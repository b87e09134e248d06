"""Language models by their configurations: parameters as published, and one line for what cannot be read."""

import json
from math import prod
from pathlib import Path

import pytest

import planner
from planner.errors import GraphError
from planner.models import huggingface
from tensor_partitioner.commands.decide import main as decide
from tests.project.test_plan_command import run

CASES = Path(__file__).parents[3] / "shared" / "cases"

PARAMETERS = {
    "hf:HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "hf:Qwen/Qwen2.5-0.5B": 494_032_768,
    "hf:Qwen/Qwen3-0.6B": 596_049_920,
    "hf:TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "hf:openai-community/gpt2": 124_439_808,
}
"""As the Hub counts the elements of the models' files."""

BILLIONS = {
    "hf:meta-llama/Llama-3.1-405B": 405.9, "hf:mistralai/Mixtral-8x22B-v0.1": 140.6, "hf:Qwen/Qwen2.5-72B": 72.7,
    "hf:Qwen/Qwen3-32B": 32.8, "hf:Qwen/Qwen3-30B-A3B": 30.5, "hf:microsoft/phi-4": 14.7, "hf:google/gemma-7b": 8.54,
}  # fmt: skip
"""As models' cards say."""

SMALL = {
    "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128, "architectures": ["Qwen2ForCausalLM"],
}  # fmt: skip


def parameters(graph):
    results = {output for node in graph.nodes for output in node.outputs}
    return sum(prod(t.shape) for name, t in graph.tensors.items() if t.role == "weight" and name not in results)


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_the_parameters_of_their_files(name):
    assert parameters(planner.model(name, batch=1)) == PARAMETERS[name]


@pytest.mark.parametrize("name", BILLIONS)
def test_large_models_have_the_parameters_of_their_cards(name):
    few, more = (parameters(planner.model(name, batch=1, sequence=16, layers=n)) for n in (1, 2))
    layers = huggingface.size_of(name).layers
    assert (few + (layers - 1) * (more - few)) / 1e9 == pytest.approx(BILLIONS[name], rel=5e-3)


def test_all_names_of_the_table_are_read():
    names = [*huggingface.Depths()]
    assert len(names) >= 60
    assert all(huggingface.size_of(name).layers == huggingface.Depths()[name] for name in names)


@pytest.mark.parametrize("variant", ["Qwen/Qwen2.5-7B-Instruct", "qwen/qwen2.5-7b"])
def test_variants_have_the_same_extents(variant):
    assert huggingface.size_of(f"hf:{variant}") == huggingface.size_of("hf:Qwen/Qwen2.5-7B")


def test_a_file_and_the_table_agree():
    path = CASES / "qwen25_7b_config.json"
    if not path.exists():
        pytest.skip("the public cases are not here")
    assert huggingface.size_of(str(path)) == huggingface.size_of("hf:Qwen/Qwen2.5-7B")


def test_a_configuration_is_decided(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    asked = ("--topo", "uniform-4", "--batch", "8", "--sequence", "32", "--dtype", "float32")
    assert run(decide, path, *asked, "--json", tmp_path / "decision.json") == 0
    assert str(path) in capsys.readouterr().out.replace("\n", "")
    record = json.loads((tmp_path / "decision.json").read_text())
    assert (record["model"]["layers"], record["model"]["sequence"]) == (2, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "falcon"}, "expected model_type llama"),
        ({"hidden_size": None}, "the field hidden_size is missing"),
        ({"num_hidden_layers": "two"}, "Expected `int | null`, got `str`"),
        ({"hidden_size": 65}, "hidden_size: expected a multiple of twice the 4 heads, found 65"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of the 4 heads, found 3"),
        ({"head_dim": 65}, "head_dim: expected an even width, found 65"),
        ({"num_experts": 4, "num_experts_per_tok": 9}, "num_experts_per_tok: expected at most the 4 experts, found 9"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"model_type": "gemma3", "text_config": {}}, "with a text_config"),
        (
            {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_inner": 100},
            "n_inner: expected 256, four times the width, found 100",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(change, message, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL | change))
    assert run(decide, path, "--topo", "uniform-4") == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_fields_may_be_null(tmp_path):
    path, nulls = tmp_path / "config.json", ("num_experts_per_tok", "max_position_embeddings", "rope_theta")
    path.write_text(json.dumps(SMALL | dict.fromkeys(nulls)))
    assert huggingface.size_of(str(path)).layers == 2


def test_an_unknown_name_is_told_what_was_meant(capsys):
    assert run(decide, "hf:meta-lama/Llama-3.1-8", "--topo", "hgx-h100") == 2
    said = capsys.readouterr().err
    assert "did you mean meta-llama/Llama-3.1-8B" in said
    assert said.count("\n") == 1


def test_a_missing_file_is_one_line(tmp_path, capsys):
    assert run(decide, tmp_path / "config.json", "--topo", "hgx-h100") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_names_are_refused_without_a_graph():
    with pytest.raises(GraphError, match="unknown model"):
        planner.model("hf:nobody/nothing")
